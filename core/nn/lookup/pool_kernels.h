#ifndef SHERD_CORE_NN_LOOKUP_POOL_KERNELS_H_
#define SHERD_CORE_NN_LOOKUP_POOL_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::internal {

// How many addresses behind the last row of a batch are read ahead: they are
// addresses of memory, such as copies of the last one.
inline constexpr size_t kRowsAhead = 16;

// A batch of bags whose rows have been found.
struct PoolBatch {
  // Row b of the output is at out + b * out_stride; `width` elements of it are
  // written.
  std::byte* out = nullptr;
  int64_t out_stride = 0;
  int64_t width = 0;
  int64_t bags = 0;
  // The rows of bag b are those from ends[b - 1] (0 for the first bag) to
  // ends[b] - 1.
  const int64_t* ends = nullptr;
  const std::byte* const* rows = nullptr;
  // A factor for each row, of the dtype AccumulatorOf(in); null: none.
  const void* weights = nullptr;
  // What the result of each bag is divided by, unless it is 0; null: nothing.
  const int64_t* divisors = nullptr;
};

// float64 of float64, otherwise float32.
DType AccumulatorOf(DType dtype);

// The instruction set for rows of `width` elements of `dtype`. Rows shorter
// than a vector are padded: the widest vectors that they fill are faster.
ReductionTarget RowTargetFor(DType dtype, int64_t width);

// Adds the rows of each bag, or takes their maximum if `max`, in their order,
// and writes the result: 0 for a bag without rows.
//
// Values. `in` is float64, float32, float16 or bfloat16, and `out` is `in` or
// AccumulatorOf(in), or `in` is AccumulatorOf(out). Computed in
// AccumulatorOf(in) and rounded once. The same bits with every target.
void PoolRows(DType in, DType out, bool max, const PoolBatch& batch);
void PoolRowsWith(ReductionTarget target, DType in, DType out, bool max,
                  const PoolBatch& batch);

// Copies `count` rows of `bytes` bytes: row i to out + i * out_stride.
void CopyRows(std::byte* out, int64_t out_stride, const std::byte* const* rows,
              int64_t count, size_t bytes);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_POOL_KERNELS_H_
