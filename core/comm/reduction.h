#ifndef SHERD_CORE_COMM_REDUCTION_H_
#define SHERD_CORE_COMM_REDUCTION_H_

#include <cstddef>
#include <cstdint>
#include <ostream>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/comm/collective/operations.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd {

// Whether `value` is the number of a ReduceOp. Check numbers from peers and
// plugins with it before casting.
constexpr bool IsValidReduceOp(int32_t value) {
  return value >= 0 && value < kNumReduceOps;
}

// "sum", "avg", "product", "min", "max", "band", "bor", "bxor".
absl::string_view Name(ReduceOp op);

std::ostream& operator<<(std::ostream& out, ReduceOp op);

// OK if `op` is defined for elements of `dtype`:
//
//            sum product  avg  min max  band bor bxor
//   bool      x     x           x   x    x    x   x
//   integers  x     x      x    x   x    x    x   x
//   floats    x     x      x    x   x
//   complex   x     x      x
//   carried
//
// Errors. Returns kInvalidArgument with both names and the reason, or for a
// carried dtype kUnimplemented.
absl::Status CheckReduction(ReduceOp op, DType dtype);

// Reduces several arrays into one, element by element:
//
//     out[i] = ins[0][i] op ins[1][i] op … op ins[n - 1][i],  0 <= i < count
//
// from left to right, so that equal inputs in an equal order give equal bits on
// every machine.
//
// Values.
//   bool      A value other than 0 is true. sum, max, bor: or; product, min,
//             band: and; bxor: whether an odd number is true. Written as 0 or
//             1.
//   integers  sum and product modulo 2^bits. avg: that sum divided by
//             `divisor`, toward zero; a sum that wrapped is not repaired.
//   floats    float64 and float32 in their own precision; the smaller ones in
//             float32 and rounded once, at the end, to nearest even (so avg
//             rounds once too). min and max: NaN if one of them is NaN; of
//             zeros with different signs, the last.
//   complex   Part by part; product by the textbook formula, which makes NaNs
//             of infinities.
// `divisor` matters for avg only, where it is at least 1.
//
// Buffers. `ins` is not empty. `out` may be exactly one of the inputs;
// otherwise it overlaps none. Inputs may coincide. Any alignment.
//
// Threads. Any; nothing is shared.
//
// Cost. Each input is read once and `out` written once, with the widest vectors
// that the processor has: at the speed of memory beyond the caches.
//
// The caller has called CheckReduction; a combination that it refuses aborts
// the process.
void Reduce(ReduceOp op, DType dtype, void* out,
            absl::Span<const void* const> ins, size_t count, int divisor);

namespace internal {

// The instruction sets for which Reduce has code.
enum class ReductionTarget : int { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };

// The target that Reduce uses on this processor: the highest that it supports.
ReductionTarget BestReductionTarget();

// Reduce with the code for `target`, which is at most BestReductionTarget().
// All give the same bits, but for the payload of NaNs.
void ReduceWith(ReductionTarget target, ReduceOp op, DType dtype, void* out,
                absl::Span<const void* const> ins, size_t count, int divisor);

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_COMM_REDUCTION_H_
