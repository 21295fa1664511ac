#include "sherd/tools/bench/peers/box_layout.h"

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

absl::Status NotOfBytes(int64_t bytes, absl::string_view what, int64_t unit) {
  return absl::InvalidArgumentError(absl::StrCat(
      bytes, " bytes are no ", what, " of 4-byte elements: take a multiple of ",
      unit * kWordBytes));
}

// Calls visit(index of the first word, line) for each row of a box.
template <typename Visit>
void ForEachRow(const WordTensor& tensor, const StoredBox& stored,
                Visit visit) {
  const WordBox& box = stored.box;
  for (int64_t plane = 0; plane < box.sizes[0]; ++plane) {
    for (int64_t row = 0; row < box.sizes[1]; ++row) {
      visit(
          ((box.offsets[0] + plane) * tensor.size[1] + box.offsets[1] + row) *
                  tensor.size[2] +
              box.offsets[2],
          stored.words + plane * stored.plane_stride + row * stored.row_stride);
    }
  }
}

}  // namespace

absl::StatusOr<WordTensor> MatrixOfBytes(int64_t bytes) {
  int64_t rows = kFewestRows;
  while (rows * rows * kWordBytes < bytes) rows *= 2;
  const WordTensor matrix{{1, rows, bytes / kWordBytes / rows}, 2};
  if (matrix.cols() == 0 || matrix.bytes() != bytes) {
    return NotOfBytes(bytes, absl::StrCat("matrix of ", rows, " rows"), rows);
  }
  return matrix;
}

absl::StatusOr<WordTensor> CubeOfBytes(int64_t bytes) {
  const int64_t words = bytes / kWordBytes;
  int64_t first = 1;
  int64_t second = 1;
  while (words > first * second * second) {
    (first == second ? first : second) *= 2;
  }
  const WordTensor cube{{first, second, words / (first * second)}, 3};
  if (cube.words() == 0 || cube.bytes() != bytes) {
    return NotOfBytes(bytes, absl::StrCat("cube of ", first, " x ", second),
                      first * second);
  }
  return cube;
}

CyclicLayout RowsOver(const WordTensor& matrix, int ranks) {
  return {CeilDiv(matrix.rows(), ranks), matrix.cols(), ranks, 1};
}

CyclicLayout ColumnsOver(const WordTensor& matrix, int ranks) {
  return {matrix.rows(), CeilDiv(matrix.cols(), ranks), 1, ranks};
}

CyclicLayout GridOver(const WordTensor& matrix, int ranks) {
  if (ranks == 2) return ColumnsOver(matrix, ranks);
  return {CeilDiv(matrix.rows(), 2), CeilDiv(matrix.cols(), ranks / 2), 2,
          ranks / 2};
}

CyclicLayout AllOnRankZero(const WordTensor& matrix, int ranks) {
  return {matrix.rows(), matrix.cols(), 1, ranks};
}

CyclicLayout BlocksOver(int64_t block, int grid_rows, int ranks) {
  return {block, block, grid_rows, ranks / grid_rows};
}

BoxLayout BoxesOf(const WordTensor& matrix, const CyclicLayout& layout) {
  BoxLayout boxes(layout.grid_rows * layout.grid_cols);
  const int64_t rows = matrix.rows();
  const int64_t cols = matrix.cols();
  for (int64_t row = 0, i = 0; row < rows; row += layout.block_rows, ++i) {
    for (int64_t col = 0, k = 0; col < cols; col += layout.block_cols, ++k) {
      boxes[i % layout.grid_rows * layout.grid_cols + k % layout.grid_cols]
          .push_back({{0, row, col},
                      {1, std::min(layout.block_rows, rows - row),
                       std::min(layout.block_cols, cols - col)}});
    }
  }
  return boxes;
}

BoxLayout CutAlong(const WordTensor& tensor, int dim, int ranks) {
  BoxLayout boxes(ranks);
  const int64_t step = CeilDiv(tensor.size[dim], ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    WordBox box = WholeOf(tensor);
    box.offsets[dim] = rank * step;
    box.sizes[dim] = std::min(step, tensor.size[dim] - rank * step);
    if (box.sizes[dim] > 0) boxes[rank].push_back(box);
  }
  return boxes;
}

WordBox WholeOf(const WordTensor& tensor) { return {{}, tensor.size}; }

int64_t WordsOf(absl::Span<const WordBox> boxes) {
  int64_t words = 0;
  for (const WordBox& box : boxes) words += box.words();
  return words;
}

WordBox Intersect(const WordBox& a, const WordBox& b) {
  WordBox common;
  const bool any = Intersect(a, b, absl::MakeSpan(common.offsets),
                             absl::MakeSpan(common.sizes));
  return any ? common : WordBox();
}

std::vector<Piece> PiecesBetween(absl::Span<const WordBox> from,
                                 absl::Span<const WordBox> to) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < from.size(); ++i) {
    for (size_t k = 0; k < to.size(); ++k) {
      const WordBox box = Intersect(from[i], to[k]);
      if (IsEmpty(box)) continue;
      pieces.push_back({static_cast<int>(i), static_cast<int>(k), box});
    }
  }
  return pieces;
}

int64_t LowerBoundBytes(const BoxLayout& from, const BoxLayout& to) {
  int64_t words = 0;
  for (size_t rank = 0; rank < to.size(); ++rank) {
    words += WordsOf(to[rank]);
    for (const Piece& piece : PiecesBetween(from[rank], to[rank])) {
      words -= piece.box.words();
    }
  }
  return words * kWordBytes;
}

int64_t StoredBox::OffsetOf(const WordBox& piece) const {
  return (piece.offsets[0] - box.offsets[0]) * plane_stride +
         (piece.offsets[1] - box.offsets[1]) * row_stride + piece.offsets[2] -
         box.offsets[2];
}

bool StoredBox::IsRun(const WordBox& piece) const {
  const int64_t row = piece.sizes[2];
  const int64_t plane = piece.sizes[1] * row;
  return (piece.sizes[1] == 1 || row_stride == row) &&
         (piece.sizes[0] == 1 || plane_stride == plane);
}

StoredBox DenseBox(const WordBox& box, uint32_t* words) {
  return {box, words, box.sizes[2], box.sizes[1] * box.sizes[2]};
}

std::vector<int64_t> OffsetsInTurn(absl::Span<const WordBox> boxes) {
  std::vector<int64_t> offsets;
  int64_t words = 0;
  for (const WordBox& box : boxes) {
    offsets.push_back(words);
    words += box.words();
  }
  return offsets;
}

std::vector<StoredBox> StoreInTurn(absl::Span<const WordBox> boxes,
                                   uint32_t* words) {
  std::vector<StoredBox> stored;
  for (const WordBox& box : boxes) {
    stored.push_back(DenseBox(box, words));
    words += box.words();
  }
  return stored;
}

void CopyPiece(const StoredBox& to, const StoredBox& from,
               const WordBox& piece) {
  if (piece.words() == 0) return;
  uint32_t* const destination = to.At(piece);
  const uint32_t* const source = from.At(piece);
  auto [planes, rows, run] = piece.sizes;
  if (to.IsRun(piece) && from.IsRun(piece)) {
    std::memcpy(destination, source, piece.bytes());
    return;
  }
  if (to.row_stride == run && from.row_stride == run) {
    run *= rows;
    rows = 1;
  }
  for (int64_t plane = 0; plane < planes; ++plane) {
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(destination + plane * to.plane_stride + row * to.row_stride,
                  source + plane * from.plane_stride + row * from.row_stride,
                  run * kWordBytes);
    }
  }
}

void Fill(const WordTensor& tensor, absl::Span<const StoredBox> boxes) {
  for (const StoredBox& stored : boxes) {
    ForEachRow(tensor, stored, [&](int64_t first, uint32_t* line) {
      for (int64_t i = 0; i < stored.box.sizes[2]; ++i) {
        line[i] = WordAt(first + i);
      }
    });
  }
}

void Spoil(const WordTensor& tensor, absl::Span<const StoredBox> boxes) {
  for (const StoredBox& stored : boxes) {
    ForEachRow(tensor, stored, [&](int64_t first, uint32_t* line) {
      for (int64_t i = 0; i < stored.box.sizes[2]; ++i) {
        line[i] = ~WordAt(first + i);
      }
    });
  }
}

absl::Status Check(const WordTensor& tensor,
                   absl::Span<const StoredBox> boxes) {
  for (const StoredBox& stored : boxes) {
    int64_t wrong = 0;
    int64_t first_wrong = 0;
    ForEachRow(tensor, stored, [&](int64_t first, const uint32_t* line) {
      int64_t wrong_here = 0;
      for (int64_t i = 0; i < stored.box.sizes[2]; ++i) {
        wrong_here += line[i] != WordAt(first + i);
      }
      if (wrong == 0 && wrong_here > 0) first_wrong = first / tensor.size[2];
      wrong += wrong_here;
    });
    if (wrong == 0) continue;
    return absl::DataLossError(
        absl::StrCat("wrong result: ", wrong, " of ", stored.box.words(),
                     " elements differ, the first in row ", first_wrong));
  }
  return absl::OkStatus();
}

}  // namespace sherd
