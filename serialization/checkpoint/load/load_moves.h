#ifndef SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOAD_MOVES_H_
#define SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOAD_MOVES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/serialization/checkpoint/load/load_exchange.h"
#include "sherd/serialization/manifest/saved_layout.h"

namespace sherd {

// Moves between ranks while tensors are loaded: those of many tensors, of one
// element size, in one run of a ReshardExecutor.

// The part of one rank in a run.
struct MoveList {
  std::vector<BoxCopy> copies;
  std::vector<SourceMemory> sources;
  std::vector<DestinationMemory> destinations;
};

absl::StatusOr<ReshardExecutor> MakeExecutor(MoveList moves,
                                             size_t element_size,
                                             const ProcessGroup& group,
                                             const ReshardOptions& options);

// The shards of the tensors of one run have numbers that all ranks share: those
// of a tensor follow those of the tensor before.
class ShardNumbers {
 public:
  // Returns the number of the first shard.
  //   kResourceExhausted  More shards than an int counts.
  absl::StatusOr<int> Add(const ShardedTensor& tensor);

 private:
  int next_ = 0;
};

// Lists the memory of this rank's shards that are not empty.
void ListShards(const ShardedTensor& tensor, int first,
                std::vector<DestinationMemory>& memory);
void ListShards(const ShardedTensor& tensor, int first,
                std::vector<SourceMemory>& memory);

// The tensors that ranks read in long pieces, to exchange what they need, in
// rounds: see ExchangeStream. Staging memory is that of one round, or of two if
// one is read while the one before is moved.
class LoadExchange {
 public:
  // Has to read a part of a shard of the tensor `number` into `buffer`, of its
  // length, before the moves of the round run.
  using ReadFn = absl::FunctionRef<absl::Status(
      int64_t number, const ExchangeStream::ShardPart& part,
      absl::Span<std::byte> buffer)>;

  // `group` is borrowed. A rank reads some `part_bytes` in a round.
  LoadExchange(ProcessGroup& group, size_t element_size, int64_t part_bytes)
      : group_(group), stream_(element_size, group.size(), part_bytes) {}

  // Adds a tensor by a number of the caller. `saved` is borrowed.
  //   kResourceExhausted  Too many shards.
  absl::Status Add(int64_t number, const SavedLayout& saved,
                   const ShardedTensor& tensor);
  // After the last Add.
  void Finish() { stream_.Finish(); }

  int64_t rounds() const { return stream_.rounds(); }

  // What this rank moves in a round; calls `read` for all that it reads. On any
  // thread, one call at a time; no moves run meanwhile, but with `ahead` those
  // of the round before.
  absl::StatusOr<MoveList> PlanRound(int64_t round, bool ahead, ReadFn read);

 private:
  struct Entry {
    int64_t number;
    ShardedTensor tensor;
    int first_shard;
  };
  // The wanted boxes of a layout, without the empty ones, and which shards have
  // each.
  struct WantedIndex {
    // One that has the layout.
    ShardedTensor tensor;
    SavedLayout layout;
    // By number in `layout`; the holders of box i are
    // holders[first[i]] to holders[first[i + 1]].
    std::vector<size_t> first;
    std::vector<int> holders;
  };

  const WantedIndex& IndexOf(const ShardedTensor& wanted);
  void ListSends(const ExchangeStream::Piece& piece, MoveList& moves);
  void ListReceives(int64_t round, size_t tensor, MoveList& moves) const;

  ProcessGroup& group_;
  ExchangeStream stream_;
  ShardNumbers numbers_;
  std::vector<Entry> entries_;
  // The second is for reading ahead; `turn_` was used last.
  std::array<std::shared_ptr<Storage>, 2> staging_;
  size_t turn_ = 0;
  // Of the layouts that were last asked for; most tensors share one with their
  // neighbours. Null: not used yet.
  std::array<std::unique_ptr<WantedIndex>, 4> indexes_;
  size_t next_index_ = 0;
  // As many as the last round had.
  size_t copies_ = 0;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOAD_MOVES_H_
