#ifndef SHERD_TOOLS_BENCH_MATRIX_LAYOUT_H_
#define SHERD_TOOLS_BENCH_MATRIX_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sherd {

// The tensor that the cases move: a matrix of 32-bit words, no two of which are
// equal as long as it has at most 2^32.
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;

  int64_t bytes() const { return rows * cols * int64_t{sizeof(uint32_t)}; }
};

// The matrix of `bytes` bytes that is about square: 512 rows, doubled until
// there are no fewer rows than columns.
//   kInvalidArgument  Such rows do not divide it.
absl::StatusOr<Matrix> MatrixOfBytes(int64_t bytes);

// Part of a matrix, stored row by row without gaps.
struct MatrixBox {
  int64_t row = 0;
  int64_t col = 0;
  int64_t rows = 0;
  int64_t cols = 0;

  int64_t words() const { return rows * cols; }
  int64_t bytes() const { return words() * int64_t{sizeof(uint32_t)}; }
  friend bool operator==(const MatrixBox&, const MatrixBox&) = default;
};

// What each rank holds; together the whole matrix, once.
using MatrixLayout = std::vector<MatrixBox>;

// Blocks of ceil(size / ranks); the last ranks may have less, or nothing.
MatrixLayout RowsOver(const Matrix& matrix, int ranks);
MatrixLayout ColumnsOver(const Matrix& matrix, int ranks);
// Two rows of ranks / 2 boxes; columns only for two ranks. `ranks` is even.
MatrixLayout GridOver(const Matrix& matrix, int ranks);
MatrixLayout AllOnRankZero(const Matrix& matrix, int ranks);

// What two boxes have in common; without words if that is nothing.
MatrixBox Intersect(const MatrixBox& a, const MatrixBox& b);

// Whether the words of `piece` are one run of memory inside `box`.
bool IsRun(const MatrixBox& piece, const MatrixBox& box);
// Where the first word of `piece` is inside `box`.
int64_t OffsetIn(const MatrixBox& piece, const MatrixBox& box);

// Copies the words of `piece` from where `source_box` is stored to where
// `destination_box` is: one memcpy per row, or one in all if it is a run on
// both sides.
void CopyPiece(uint32_t* destination, const MatrixBox& destination_box,
               const uint32_t* source, const MatrixBox& source_box,
               const MatrixBox& piece);

// Writes the words of `box`.
void FillBox(const Matrix& matrix, const MatrixBox& box, uint32_t* words);
// Makes every word of the box wrong.
void SpoilBox(const Matrix& matrix, const MatrixBox& box, uint32_t* words);
//   kDataLoss  Words are wrong; says how many and the first.
absl::Status CheckBox(const Matrix& matrix, const MatrixBox& box,
                      const uint32_t* words);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_MATRIX_LAYOUT_H_
