#ifndef SHERD_TOOLS_BENCH_PEERS_BOX_LAYOUT_H_
#define SHERD_TOOLS_BENCH_PEERS_BOX_LAYOUT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {

// Sizes by dim, the last one contiguous in memory. A matrix has one plane: its
// rows are dim 1 and its columns dim 2.
using Extent = std::array<int64_t, 3>;

// The tensor that the cases move: 32-bit words, all different if there are at
// most 2^32.
struct WordTensor {
  Extent size = {};
  // 2 or 3: the user's number of dimensions in `size`.
  int dims = 2;

  int64_t words() const { return Volume(size); }
  int64_t bytes() const { return words() * int64_t{sizeof(uint32_t)}; }
  int64_t rows() const { return size[1]; }
  int64_t cols() const { return size[2]; }
};

// The matrix of `bytes` bytes that is about square: 512 rows, doubled until
// there are no fewer rows than columns.
//   kInvalidArgument  Such rows do not divide it.
absl::StatusOr<WordTensor> MatrixOfBytes(int64_t bytes);

// The tensor of three dims of `bytes` bytes that is about a cube: the first two
// are powers of two, doubled in turn until the last is no longer than they are.
//   kInvalidArgument  They do not divide it.
absl::StatusOr<WordTensor> CubeOfBytes(int64_t bytes);

// Part of a tensor. Its numbers are stored inline, so that peers that are plain
// programs allocate nothing for a box.
struct WordBox {
  Extent offsets = {};
  Extent sizes = {};

  operator BoxView() const {  // NOLINT(google-explicit-constructor)
    return {offsets, sizes};
  }
  int64_t words() const { return Volume(sizes); }
  int64_t bytes() const { return words() * int64_t{sizeof(uint32_t)}; }
  friend bool operator==(const WordBox&, const WordBox&) = default;
};

// The boxes of one rank, and of each rank: together the whole tensor, once,
// without empty boxes.
using RankBoxes = std::vector<WordBox>;
using BoxLayout = std::vector<RankBoxes>;

// A matrix cut into blocks that are distributed cyclically over a grid of
// ranks, rank by rank along its rows: ScaLAPACK's layout, which includes the
// plain cuts of a matrix as special cases.
struct CyclicLayout {
  int64_t block_rows;
  int64_t block_cols;
  int grid_rows;
  int grid_cols;
};

// Blocks of ceil(size / ranks); the last ranks may have less, or none.
CyclicLayout RowsOver(const WordTensor& matrix, int ranks);
CyclicLayout ColumnsOver(const WordTensor& matrix, int ranks);
// Two rows of ranks / 2 boxes; columns only for two ranks. `ranks` is even.
CyclicLayout GridOver(const WordTensor& matrix, int ranks);
CyclicLayout AllOnRankZero(const WordTensor& matrix, int ranks);
// Square blocks of `block` words over a grid of `grid_rows` rows.
CyclicLayout BlocksOver(int64_t block, int grid_rows, int ranks);

BoxLayout BoxesOf(const WordTensor& matrix, const CyclicLayout& layout);
// Blocks of ceil(size / ranks) along dim 0, 1 or 2.
BoxLayout CutAlong(const WordTensor& tensor, int dim, int ranks);

WordBox WholeOf(const WordTensor& tensor);
int64_t WordsOf(absl::Span<const WordBox> boxes);

// The intersection of two boxes; without words if it is empty.
WordBox Intersect(const WordBox& a, const WordBox& b);

// The words that move from a box of one list to a box of another.
struct Piece {
  int from = 0;
  int to = 0;
  WordBox box;
};

// Ordered by `from`, then by `to`.
std::vector<Piece> PiecesBetween(absl::Span<const WordBox> from,
                                 absl::Span<const WordBox> to);

// The bytes that must come to some rank from another, with any strategy.
int64_t LowerBoundBytes(const BoxLayout& from, const BoxLayout& to);

// A box in memory; words of a row are contiguous.
struct StoredBox {
  WordBox box;
  // The first word of the box.
  uint32_t* words = nullptr;
  // In words, from one row to the next.
  int64_t row_stride = 0;
  int64_t plane_stride = 0;

  // Offset of the first word of `piece` from that of the box, in memory.
  int64_t OffsetOf(const WordBox& piece) const;
  uint32_t* At(const WordBox& piece) const { return words + OffsetOf(piece); }
  // Whether the words of `piece` are contiguous in memory.
  bool IsRun(const WordBox& piece) const;
};

// Without gaps.
StoredBox DenseBox(const WordBox& box, uint32_t* words);
// Boxes one after another, each without gaps: the number of words before each,
// and the boxes at an address.
std::vector<int64_t> OffsetsInTurn(absl::Span<const WordBox> boxes);
std::vector<StoredBox> StoreInTurn(absl::Span<const WordBox> boxes,
                                   uint32_t* words);

// Copies the words of `piece`: one memcpy for each run of both sides.
void CopyPiece(const StoredBox& to, const StoredBox& from,
               const WordBox& piece);

// Writes the words of the boxes.
void Fill(const WordTensor& tensor, absl::Span<const StoredBox> boxes);
// Overwrites every word of the boxes with a wrong one.
void Spoil(const WordTensor& tensor, absl::Span<const StoredBox> boxes);
//   kDataLoss  Words are wrong; the message has their number in the first such
//              box, and the position of the first.
absl::Status Check(const WordTensor& tensor, absl::Span<const StoredBox> boxes);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_BOX_LAYOUT_H_
