#ifndef SHERD_CORE_TENSOR_KERNELS_ELEMENTWISE_KERNELS_H_
#define SHERD_CORE_TENSOR_KERNELS_ELEMENTWISE_KERNELS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/kernels/elementwise_op.h"

namespace sherd::internal {

// The instruction sets for which there is code.
enum class ElementwiseTarget : int { kBaseline = 0, kAvx2 = 1 };

// The highest that this processor has.
ElementwiseTarget BestElementwiseTarget();

// The type in which elements of `dtype` are computed with: float32 for smaller
// floats, uint8 for bool, otherwise `dtype`.
DType ComputeDType(DType dtype);

// Elements that pass through buffers at a time where they cannot be used where
// they are.
inline constexpr int64_t kElementwiseBlock = 512;

// One number of the compute type, as often as a block has elements.
using ConstantBlock = std::array<std::byte, kElementwiseBlock * 16>;

// An operand along a run: elements `step` bytes apart from `at` on, or, with
// kConstantStep, a ConstantBlock.
struct RunOperand {
  const std::byte* at;
  int64_t step;
};
inline constexpr int64_t kConstantStep = std::numeric_limits<int64_t>::min();

// Computes a run of `count` elements, `out_step` bytes apart from `out` on.
// Operands may be the output, exactly, and otherwise do not overlap it. The
// combination has passed CheckElementwise, and no integer is divided by 0 or
// raised to a negative power. All targets give the same bits.
void RunElementwise(ElementwiseTarget target, UnaryOp op, DType dtype,
                    std::byte* out, int64_t out_step, RunOperand a,
                    int64_t count);
void RunElementwise(ElementwiseTarget target, BinaryOp op, DType dtype,
                    std::byte* out, int64_t out_step, RunOperand a,
                    RunOperand b, int64_t count);

// The numbers that `count` floats of 8 or 16 bits are, exactly.
void DecodeSmallFloats(ElementwiseTarget target, DType dtype,
                       const std::byte* from, float* out, int64_t count);

}  // namespace sherd::internal

#endif  // SHERD_CORE_TENSOR_KERNELS_ELEMENTWISE_KERNELS_H_
