#include "sherd/tools/bench/matrix_layout.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

constexpr int64_t kWordBytes = sizeof(uint32_t);
constexpr int64_t kFewestRows = 512;

// Multiplying by an odd number maps the words of 2^32 onto themselves; the
// summand keeps the first from being zero.
uint32_t WordAt(int64_t index) {
  return static_cast<uint32_t>(index) * 2654435761u + 0x5eed;
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Start and length of the block of `rank`.
struct Block {
  int64_t start;
  int64_t size;
};

Block BlockOf(int64_t size, int ranks, int rank) {
  const int64_t step = CeilDiv(size, ranks);
  const int64_t start = std::min(size, rank * step);
  return {start, std::min(size, start + step) - start};
}

}  // namespace

absl::StatusOr<Matrix> MatrixOfBytes(int64_t bytes) {
  int64_t rows = kFewestRows;
  while (rows * rows * kWordBytes < bytes) rows *= 2;
  const Matrix matrix{rows, bytes / kWordBytes / rows};
  if (matrix.cols == 0 || matrix.bytes() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        bytes, " bytes are no matrix of ", rows,
        " rows of 4-byte elements: take a multiple of ", rows * kWordBytes));
  }
  return matrix;
}

MatrixLayout RowsOver(const Matrix& matrix, int ranks) {
  MatrixLayout layout;
  for (int rank = 0; rank < ranks; ++rank) {
    const Block block = BlockOf(matrix.rows, ranks, rank);
    layout.push_back({block.start, 0, block.size, matrix.cols});
  }
  return layout;
}

MatrixLayout ColumnsOver(const Matrix& matrix, int ranks) {
  MatrixLayout layout;
  for (int rank = 0; rank < ranks; ++rank) {
    const Block block = BlockOf(matrix.cols, ranks, rank);
    layout.push_back({0, block.start, matrix.rows, block.size});
  }
  return layout;
}

MatrixLayout GridOver(const Matrix& matrix, int ranks) {
  if (ranks == 2) return ColumnsOver(matrix, ranks);
  MatrixLayout layout;
  for (int rank = 0; rank < ranks; ++rank) {
    const Block rows = BlockOf(matrix.rows, 2, rank / (ranks / 2));
    const Block cols = BlockOf(matrix.cols, ranks / 2, rank % (ranks / 2));
    layout.push_back({rows.start, cols.start, rows.size, cols.size});
  }
  return layout;
}

MatrixLayout AllOnRankZero(const Matrix& matrix, int ranks) {
  MatrixLayout layout(ranks);
  layout[0] = {0, 0, matrix.rows, matrix.cols};
  return layout;
}

MatrixBox Intersect(const MatrixBox& a, const MatrixBox& b) {
  const int64_t row = std::max(a.row, b.row);
  const int64_t col = std::max(a.col, b.col);
  const int64_t rows = std::min(a.row + a.rows, b.row + b.rows) - row;
  const int64_t cols = std::min(a.col + a.cols, b.col + b.cols) - col;
  if (rows <= 0 || cols <= 0) return {};
  return {row, col, rows, cols};
}

bool IsRun(const MatrixBox& piece, const MatrixBox& box) {
  return piece.rows <= 1 || piece.cols == box.cols;
}

int64_t OffsetIn(const MatrixBox& piece, const MatrixBox& box) {
  return (piece.row - box.row) * box.cols + piece.col - box.col;
}

void CopyPiece(uint32_t* destination, const MatrixBox& destination_box,
               const uint32_t* source, const MatrixBox& source_box,
               const MatrixBox& piece) {
  if (piece.words() == 0) return;
  destination += OffsetIn(piece, destination_box);
  source += OffsetIn(piece, source_box);
  if (IsRun(piece, destination_box) && IsRun(piece, source_box)) {
    std::memcpy(destination, source, piece.bytes());
    return;
  }
  for (int64_t row = 0; row < piece.rows; ++row) {
    std::memcpy(destination + row * destination_box.cols,
                source + row * source_box.cols, piece.cols * kWordBytes);
  }
}

void FillBox(const Matrix& matrix, const MatrixBox& box, uint32_t* words) {
  for (int64_t row = 0; row < box.rows; ++row) {
    const int64_t first = (box.row + row) * matrix.cols + box.col;
    for (int64_t col = 0; col < box.cols; ++col) {
      *words++ = WordAt(first + col);
    }
  }
}

void SpoilBox(const Matrix& matrix, const MatrixBox& box, uint32_t* words) {
  for (int64_t row = 0; row < box.rows; ++row) {
    const int64_t first = (box.row + row) * matrix.cols + box.col;
    for (int64_t col = 0; col < box.cols; ++col) {
      *words++ = ~WordAt(first + col);
    }
  }
}

absl::Status CheckBox(const Matrix& matrix, const MatrixBox& box,
                      const uint32_t* words) {
  int64_t wrong = 0;
  int64_t first_wrong = 0;
  for (int64_t row = box.rows - 1; row >= 0; --row) {
    const int64_t first = (box.row + row) * matrix.cols + box.col;
    const uint32_t* const line = words + row * box.cols;
    int64_t wrong_here = 0;
    for (int64_t col = 0; col < box.cols; ++col) {
      wrong_here += line[col] != WordAt(first + col);
    }
    if (wrong_here > 0) first_wrong = row;
    wrong += wrong_here;
  }
  if (wrong == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "wrong result: ", wrong, " of ", box.words(),
      " elements differ, the first in row ", box.row + first_wrong));
}

}  // namespace sherd
