#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/transfer/direct_move.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/tools/bench/peers/move.h"
#include "sherd/tools/bench/peers/sharded_words.h"

namespace sherd {
namespace {

// Gives back to the system what the heap keeps for later, so that the next
// result lies in fresh pages.
void EmptyHeapPool() {
  const size_t capacity = GetHeapStatistics().capacity_bytes;
  SetHeapPoolCapacity(0);
  SetHeapPoolCapacity(capacity);
}

absl::StatusOr<Tensor> WholeTensor(const WordTensor& words,
                                   ProcessGroup& group) {
  return Tensor::Empty(
      SizeOf(words), {.dtype = kUInt32, .allocator = &group.shard_allocator()});
}

std::vector<StoredBox> StoredTensor(const WordTensor& words, Tensor tensor) {
  if (!tensor.defined()) return {};
  return {DenseBox(WholeOf(words), tensor.mutable_data_as<uint32_t>())};
}

class SherdMove : public RankWork {
 public:
  SherdMove(const Move& move, std::shared_ptr<ProcessGroup> group)
      : tensor_(move.tensor), group_(std::move(group)) {
    options_.stats = &stats_;
  }

  absl::Status Prepare() final {
    if (first_) {
      EmptyHeapPool();
      return absl::OkStatus();
    }
    return PrepareAgain();
  }

  absl::Status Run() final { return first_ ? RunFirst() : RunAgain(); }

  absl::Status Check() final {
    SHERD_RETURN_IF_ERROR(sherd::Check(tensor_, result()));
    if (first_) DropFirst();
    first_ = false;
    return absl::OkStatus();
  }

  std::optional<WorkFigures> Figures() const final {
    return WorkFigures{.bytes_sent = stats_.bytes_sent,
                       .bytes_received = stats_.bytes_received,
                       .way = std::string(Name(stats_.strategy))};
  }

 protected:
  // Into memory that the call allocates; later calls do the same if the
  // function has no other form.
  virtual absl::Status RunFirst() = 0;
  virtual void DropFirst() {}
  // Into memory that is there.
  virtual absl::Status PrepareAgain() = 0;
  virtual absl::Status RunAgain() = 0;
  // This rank's part of it.
  virtual std::vector<StoredBox> result() const = 0;

  const WordTensor& tensor() const { return tensor_; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  const ReshardOptions& options() const { return options_; }

 private:
  const WordTensor tensor_;
  const std::shared_ptr<ProcessGroup> group_;
  ReshardStats stats_;
  ReshardOptions options_;
  bool first_ = true;
};

class SherdReshard final : public SherdMove {
 public:
  SherdReshard(const Move& move, std::shared_ptr<ProcessGroup> group)
      : SherdMove(move, std::move(group)), to_(move.to) {}

  absl::Status Init(const Move& move) {
    SHERD_ASSIGN_OR_RETURN(source_,
                           MakeShardedWords(move.tensor, move.from, group()));
    SHERD_ASSIGN_OR_RETURN(target_, SpecOf(move.tensor, move.to));
    Fill(move.tensor, StoredShards(source_));
    return absl::OkStatus();
  }

 private:
  absl::Status RunFirst() override {
    destination_ = source_;
    return destination_.Reshard(target_, options());
  }
  void DropFirst() override { destination_ = ShardedTensor(); }

  absl::Status PrepareAgain() override {
    if (!destination_.defined()) {
      SHERD_ASSIGN_OR_RETURN(destination_,
                             MakeShardedWords(tensor(), to_, group()));
    }
    Spoil(tensor(), result());
    return absl::OkStatus();
  }
  absl::Status RunAgain() override {
    return source_.ReshardInto(destination_, options());
  }

  std::vector<StoredBox> result() const override {
    return StoredShards(destination_);
  }

  const BoxLayout to_;
  ShardedTensor source_;
  ShardingSpecPtr target_;
  ShardedTensor destination_;
};

class SherdGather final : public SherdMove {
 public:
  using SherdMove::SherdMove;

  absl::Status Init(const Move& move) {
    SHERD_ASSIGN_OR_RETURN(source_,
                           MakeShardedWords(move.tensor, move.from, group()));
    Fill(move.tensor, StoredShards(source_));
    return absl::OkStatus();
  }

 private:
  absl::Status RunFirst() override {
    SHERD_ASSIGN_OR_RETURN(destination_,
                           source_.Gather(/*dst_rank=*/0, Tensor(), options()));
    return absl::OkStatus();
  }
  void DropFirst() override { destination_.reset(); }

  absl::Status PrepareAgain() override {
    if (group()->rank() != 0) return absl::OkStatus();
    if (!destination_.has_value()) {
      SHERD_ASSIGN_OR_RETURN(destination_, WholeTensor(tensor(), *group()));
    }
    Spoil(tensor(), result());
    return absl::OkStatus();
  }
  absl::Status RunAgain() override {
    return source_
        .Gather(/*dst_rank=*/0, destination_.value_or(Tensor()), options())
        .status();
  }

  std::vector<StoredBox> result() const override {
    return StoredTensor(tensor(), destination_.value_or(Tensor()));
  }

  ShardedTensor source_;
  // Undefined, or nothing, on all ranks but 0.
  std::optional<Tensor> destination_;
};

// Every call makes new shards: there is no other.
class SherdShard final : public SherdMove {
 public:
  using SherdMove::SherdMove;

  absl::Status Init(const Move& move) {
    SHERD_ASSIGN_OR_RETURN(target_, SpecOf(move.tensor, move.to));
    if (group()->rank() != 0) return absl::OkStatus();
    SHERD_ASSIGN_OR_RETURN(source_, WholeTensor(move.tensor, *group()));
    Fill(move.tensor, StoredTensor(move.tensor, source_));
    return absl::OkStatus();
  }

 private:
  absl::Status RunFirst() override {
    SHERD_ASSIGN_OR_RETURN(
        destination_,
        ShardTensor(source_, target_, /*src_rank=*/0, group(), options()));
    return absl::OkStatus();
  }

  absl::Status PrepareAgain() override {
    // The next shards may lie where these did.
    Spoil(tensor(), result());
    destination_ = ShardedTensor();
    return absl::OkStatus();
  }
  absl::Status RunAgain() override { return RunFirst(); }

  std::vector<StoredBox> result() const override {
    return StoredShards(destination_);
  }

  // Undefined on all ranks but 0.
  Tensor source_;
  ShardingSpecPtr target_;
  ShardedTensor destination_;
};

template <typename Work>
absl::StatusOr<std::unique_ptr<RankWork>> Make(
    const Move& move, std::shared_ptr<ProcessGroup> group) {
  auto work = std::make_unique<Work>(move, std::move(group));
  SHERD_RETURN_IF_ERROR(work->Init(move));
  return work;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> MakeSherdMove(
    RankContext& context, const Move& move, const std::string& backend) {
  SHERD_ASSIGN_OR_RETURN(auto group, context.Group(backend));
  switch (move.verb) {
    case MoveVerb::kReshard:
      return Make<SherdReshard>(move, std::move(group));
    case MoveVerb::kGather:
      return Make<SherdGather>(move, std::move(group));
    case MoveVerb::kShard:
      return Make<SherdShard>(move, std::move(group));
  }
  return absl::InternalError("unknown verb");
}

}  // namespace sherd
