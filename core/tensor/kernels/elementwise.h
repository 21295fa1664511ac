#ifndef SHERD_CORE_TENSOR_KERNELS_ELEMENTWISE_H_
#define SHERD_CORE_TENSOR_KERNELS_ELEMENTWISE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/tensor/kernels/elementwise_op.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/core/tensor/types/scalar.h"

namespace sherd {

// Operations on each element; elementwise_op.h lists the dtypes for which each
// is defined. Computes a new contiguous tensor, or, with …InPlace, replaces the
// elements of `a`.
//
// Types. Tensors of one call have one dtype, and so has the result: nothing is
// promoted. A Scalar becomes a number of that dtype, or of float32 if it is a
// float of 16 bits or less. There is no broadcasting: sizes are equal.
//
// Values.
//   bool      add is or, mul and min are and, max is or. Any byte but 0 is
//             true; true is written as 1.
//   integers  modulo 2^n. div toward zero; the lowest number by -1 is itself.
//   floats    float64 and float32 in their own precision, the smaller ones in
//             float32 and rounded once. min, max and relu: NaN if an operand is
//             NaN; of zeros with different signs, b. The basic four, square,
//             sqrt and operations without rounding have the same bits on every
//             machine; the others are as accurate as the C++ library.
//   complex   mul and div as std::complex does, infinities included.
//
// On the device meta nothing is computed.
//
// Errors. Nothing has changed.
//   kInvalidArgument     CheckElementwise; dtypes or sizes differ; the dtype
//                        cannot hold the Scalar (see Tensor::Fill; for
//                        integers, also a Scalar that is not an integer); an
//                        integer is divided by 0 or raised to a negative power;
//                        elements of `a` coincide.
//   kFailedPrecondition  A tensor is undefined, not in host memory, meta where
//                        the other has data, or may not be written to.
//   kUnimplemented       The dtype is carried.
//   kResourceExhausted   There is no memory.
//
// Buffers. Any strides. In place, `b` may be `a` or share memory with it in any
// way: the result is as if `b` had been copied before.
//
// Threads. As for the tensors. One thread computes.
//
// Cost. Where strides allow it, vector code that runs at the speed of memory
// for everything that needs no mathematical library. No allocation in place,
// unless operands overlap without being equal.
absl::StatusOr<Tensor> Apply(UnaryOp op, const Tensor& a);
absl::StatusOr<Tensor> Apply(BinaryOp op, const Tensor& a, const Tensor& b);
absl::StatusOr<Tensor> Apply(BinaryOp op, const Tensor& a, const Scalar& b);
absl::StatusOr<Tensor> Apply(BinaryOp op, const Scalar& a, const Tensor& b);

absl::Status ApplyInPlace(UnaryOp op, Tensor& a);
absl::Status ApplyInPlace(BinaryOp op, Tensor& a, const Tensor& b);
absl::Status ApplyInPlace(BinaryOp op, Tensor& a, const Scalar& b);

// As Apply, but writes to `out`, which has the sizes and dtype of the operands
// and obeys the rules for `a` in place. It may be an operand.
absl::Status ApplyInto(UnaryOp op, const Tensor& a, Tensor& out);
absl::Status ApplyInto(BinaryOp op, const Tensor& a, const Tensor& b,
                       Tensor& out);
absl::Status ApplyInto(BinaryOp op, const Tensor& a, const Scalar& b,
                       Tensor& out);
absl::Status ApplyInto(BinaryOp op, const Scalar& a, const Tensor& b,
                       Tensor& out);

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_KERNELS_ELEMENTWISE_H_
