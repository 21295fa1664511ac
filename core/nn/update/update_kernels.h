#ifndef SHERD_CORE_NN_UPDATE_UPDATE_KERNELS_H_
#define SHERD_CORE_NN_UPDATE_UPDATE_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::internal {

// Rows of a table and their gradients. "Number" is AccumulatorOf(table).
struct UpdateBatch {
  int64_t count = 0;
  int64_t width = 0;
  // Row i of the table.
  std::byte* const* rows = nullptr;
  // Gradient i is at gradients + i * width, in numbers.
  const void* gradients = nullptr;
};

// rows[i] -= factors[i] * gradient i; `factors` are numbers.
//
// Values. Computed in numbers and rounded once. The same bits with every
// target.
void SubtractScaled(DType table, const UpdateBatch& batch, const void* factors);

// sums[i] += gradient i squared; rows[i] -= rate * gradient i / (sqrt(sums[i])
// + eps), for each element. sums[i] are `width` numbers. Values: as above.
void SubtractAdagrad(DType table, const UpdateBatch& batch,
                     std::byte* const* sums, double rate, double eps);

// Both, for tests.
void SubtractWith(ReductionTarget target, DType table, const UpdateBatch& batch,
                  const void* factors, std::byte* const* sums, double rate,
                  double eps);

// Sums of squares of the columns of a row, so that rows cut by columns have the
// same sum as whole ones. Blocks are the columns [16 k, 16 k + 16) of the
// table, of which the last may have fewer, padded with 0. The squares x of a
// block are added as ((s0 + s2) + (s1 + s3)) with si = (x[i] + x[i + 8]) +
// (x[i + 4] + x[i + 12]), and blocks in ascending order.
inline constexpr int64_t kSquareBlock = 16;

// The columns [column, column + width) of a table of `columns`.
struct ColumnRange {
  int64_t column = 0;
  int64_t width = 0;
  int64_t columns = 0;
};

// How many numbers WriteSquares writes: one for each block in the range, and
// one for each column of the blocks that it cuts.
int64_t SquareCount(const ColumnRange& range);
// Writes the sums of the blocks in the range and the squares of its other
// columns, in the order of the columns. `gradient` begins at range.column.
template <typename Number>
void WriteSquares(const ColumnRange& range, const Number* gradient,
                  Number* squares);
// The sums over `rows` rows from the numbers of their ranges: those of range i
// begin at squares[i], row after row. The ranges are all columns, in ascending
// order.
template <typename Number>
void AddSquares(absl::Span<const ColumnRange> ranges,
                absl::Span<const std::byte* const> squares, size_t rows,
                Number* sums);
// The same for a whole row.
template <typename Number>
Number SumOfSquares(const Number* gradient, int64_t columns);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_UPDATE_UPDATE_KERNELS_H_
