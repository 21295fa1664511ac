#ifndef SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOAD_EXCHANGE_H_
#define SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOAD_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest/saved_layout.h"

namespace sherd {

// Who reads which bytes of the tensors that ranks read in long pieces and then
// exchange, and when.
//
// The saved shards, of one element size, follow one another as a stream of
// bytes: tensor by tensor, shard by shard, row-major. The stream is cut into
// rounds, and each round into a part for each rank.
//
// A block is a box of a tensor that is one row-major array in the stream: a
// shard, or all of a tensor whose shards follow one another in its outermost
// dimension. It is cut into units of consecutive rows, each of which belongs to
// the part in which it begins. A piece is a box of as many units of one block
// and part as there can be in it, which are contiguous in the block: so a part
// has few pieces of a block, however many shards that is.
//
// Every rank computes the pieces of any rank, and none keeps a list of them.
class ExchangeStream {
 public:
  struct Piece {
    // In the order of Add, and the number of the block in it.
    size_t tensor = 0;
    int64_t block = 0;
    // Of the global tensor.
    Box box;
    // Of its first byte in the block.
    int64_t offset = 0;
    int64_t bytes = 0;
    // The rank that reads it, and its position in that rank's part: different
    // for the pieces of one rank and round, and below 2^31.
    int rank = 0;
    int64_t position = 0;
  };
  // Consecutive bytes of a shard.
  struct ShardPart {
    int64_t shard = 0;
    int64_t offset = 0;
    int64_t bytes = 0;
  };

  // A rank reads at most `max_part_bytes` in a round, and an eighth more where
  // a unit crosses the end of its part.
  ExchangeStream(size_t element_size, int world_size, int64_t max_part_bytes);

  // Adds a tensor, whose layout is borrowed. All before Finish.
  void Add(const SavedLayout& layout);
  // Divides the stream evenly.
  void Finish();

  size_t element_size() const { return static_cast<size_t>(element_size_); }
  int64_t rounds() const { return rounds_; }
  // Piece::position + Piece::bytes is at most this.
  int64_t max_part_bytes() const { return part_ + unit_; }
  // The tensors of which a piece may be read in `round`: [first, second).
  std::pair<size_t, size_t> TensorsIn(int64_t round) const;

  // Calls `visit` for the pieces that `rank` reads in `round`, in the order of
  // the stream, until an error.
  //
  // Cost. O(log tensors), and O(1) for each block in the part and each piece.
  absl::Status ForEachOf(
      int64_t round, int rank,
      absl::FunctionRef<absl::Status(const Piece&)> visit) const;

  // Calls `visit` for the parts of shards that together are the bytes of a
  // piece, in order, until an error.
  //
  // Cost. O(log shards), and O(1) for each part.
  absl::Status ForEachShardIn(
      const Piece& piece,
      absl::FunctionRef<absl::Status(const ShardPart&)> visit) const;

  // Calls `visit` for the pieces of `round` that have an element in common with
  // `box` of tensor `tensor`.
  //
  // Cost. For each block in which `box` has elements, O(1) for each piece of
  // the round between the first of these and the last.
  void ForEachIn(int64_t round, size_t tensor, const BoxView& box,
                 absl::FunctionRef<void(const Piece&)> visit) const;

 private:
  struct Entry {
    const SavedLayout* layout;
    // In the stream.
    int64_t begin;
    int64_t end;
    // Of boxes that are not a grid: the bytes of the tensor before each shard.
    std::vector<int64_t> before;
    // The dimension in which the shards of a tensor that is one block follow
    // one another.
    std::optional<size_t> stacked;
  };
  // How an array of some sizes is cut into units.
  struct Cut;
  struct Block;

  Cut CutOf(const Dims& sizes) const;
  // Bytes of the tensor before the shard, whose box is `box`.
  int64_t BytesBefore(const Entry& entry, int64_t shard, const Box& box) const;
  // The shard that has byte `at` of the tensor.
  int64_t ShardAt(const Entry& entry, int64_t at) const;
  // Block `number` of the tensor, into memory that is kept.
  void BlockAt(const Entry& entry, int64_t number, Block& block) const;
  // Calls `visit` for the pieces of a block in a part of the stream.
  absl::Status VisitPart(
      const Block& block, int64_t part,
      absl::FunctionRef<absl::Status(const Piece&)> visit) const;

  const int64_t element_size_;
  const int64_t world_size_;
  const int64_t max_part_;
  std::vector<Entry> entries_;
  int64_t total_ = 0;
  int64_t rounds_ = 0;
  // Bytes of a part, and the most that a unit has.
  int64_t part_ = 0;
  int64_t unit_ = 0;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOAD_EXCHANGE_H_
