#ifndef SHERD_CORE_TENSOR_KERNELS_TENSOR_STATISTICS_H_
#define SHERD_CORE_TENSOR_KERNELS_TENSOR_STATISTICS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/tensor/kernels/exact_sum.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/core/tensor/types/scalar.h"

namespace sherd {

// Statistics of all elements of a tensor, in a form in which those of its parts
// can be combined; see sharded_statistics.h for final results.
//
// Errors of all of them.
//   kInvalidArgument     The dtype has no such number.
//   kFailedPrecondition  The tensor is undefined or not in host memory.
//   kUnimplemented       The dtype is carried.

// Adds every element to `real`, or real and imaginary parts to `real` and
// `imaginary`. Bools count as 0 and 1.
absl::Status AddElements(const Tensor& tensor, ExactSum& real,
                         ExactSum& imaginary);

// Adds (|x| / divisor)^p of every element x to `sum`; each is rounded to
// double. 0^0 is 0, so that p == 0 counts the nonzero elements. `divisor` is
// not 0.
//   kInvalidArgument  The dtype is neither floating-point nor complex.
absl::Status AddPowers(const Tensor& tensor, double p, double divisor,
                       ExactSum& sum);

// The largest |x|, NaN if one is NaN, 0 of nothing.
//   kInvalidArgument  The dtype is neither floating-point nor complex.
absl::StatusOr<double> LargestMagnitude(const Tensor& tensor);

// The smallest and the largest element, as positions in the order of all
// numbers of the dtype: unsigned, equal on every machine, NaN above all others
// in `largest` and below them in `smallest`. Without elements: the whole range,
// inverted.
struct OrderedRange {
  uint64_t smallest = UINT64_MAX;
  uint64_t largest = 0;
};
//   kInvalidArgument  Complex numbers have no order.
absl::StatusOr<OrderedRange> RangeOf(const Tensor& tensor);

// The number at a position of OrderedRange, as a Scalar of `dtype`. The
// position 0 and UINT64_MAX of a floating-point dtype are NaN.
Scalar NumberAt(uint64_t position, DType dtype);

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_KERNELS_TENSOR_STATISTICS_H_
