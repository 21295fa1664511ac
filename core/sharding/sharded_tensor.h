#ifndef SHERD_CORE_SHARDING_SHARDED_TENSOR_H_
#define SHERD_CORE_SHARDING_SHARDED_TENSOR_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/reshard_executor.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/core/tensor/tensor_properties.h"

namespace sherd {

// A box of a sharded tensor with its elements.
struct Shard {
  Tensor tensor;
  ShardMetadata metadata;

  // The shard of `rank` that holds `tensor` at `offsets`.
  //   kInvalidArgument  The tensor is undefined or its rank is not the number
  //                     of offsets, or ShardMetadata::Validate.
  static absl::StatusOr<Shard> FromTensorAndOffsets(
      Tensor tensor, absl::Span<const int64_t> offsets, int rank);

  //   kInvalidArgument  "Shard tensor size does not match with
  //                     metadata.shard_lengths", "Local shard tensor device
  //                     does not match with local Shard's placement", or
  //                     ShardMetadata::Validate.
  absl::Status Validate() const;
};

struct ShardedTensorOptions {
  DType dtype = kFloat32;
  // Null: DefaultGroup().
  std::shared_ptr<ProcessGroup> group;
  bool requires_grad = false;
  bool pin_memory = false;
  // Anything else than the values given here is refused.
  Layout layout = Layout::kStrided;
  MemoryFormat memory_format = MemoryFormat::kContiguous;
  // For local shards. Null: HeapAllocator(). Must outlive them.
  Allocator* allocator = nullptr;
};

// A tensor in boxes on the ranks of a group. Every rank knows all boxes and
// holds the elements of its own; a rank may have none, one or several.
//
// Value. A handle: copying it shares the elements of the shards. Reshard on a
// copy gives that copy new shards and leaves the others as they were.
//
// Collectives. Gather, Reshard, ReshardInto, ShardTensor and FromLocalShards
// are called by every rank of the group, in the same order as its other
// collectives and with equal arguments; ranks without shards too. Before data
// moves the ranks agree that all of them can go on. Therefore, in one of them:
//
//   - An argument that is wrong on one rank is the same error on all, with the
//     rank in message and ErrorInfo. Nothing has changed and the group stays
//     usable.
//   - A rank that dies or does not come in time is kUnavailable or
//     kDeadlineExceeded, naming it, and the group is poisoned. What a call
//     creates or replaces is untouched, what it fills is unspecified. Ranks
//     that had finished may have returned OK.
//
// Ranks in placements are those of the group.
//
// Threads. Like a standard container: const calls may run concurrently, but
// collectives need an order that all ranks share.
class ShardedTensor {
 public:
  // Not a tensor yet: defined() is false and nothing else may be called, but
  // for assignment.
  ShardedTensor() = default;

  // Creation. Not collective: no rank waits for another.
  //
  // `spec`, `size` and options are the same on every rank; the first collective
  // finds out if they are not.
  //   kInvalidArgument     "Expecting ShardingSpec", "Only torch.strided layout
  //                        is currently supported", "Only
  //                        torch.contiguous_format memory_format is currently
  //                        supported", from BuildMetadata or from ResolveRank.
  //   kFailedPrecondition  There is no default group.
  //   kResourceExhausted   No memory for a shard.
  // and what Tensor reports for the device or the value.

  // Contents are unspecified.
  static absl::StatusOr<ShardedTensor> Empty(
      const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
      const ShardedTensorOptions& options = {});
  static absl::StatusOr<ShardedTensor> Zeros(
      const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
      const ShardedTensorOptions& options = {});
  static absl::StatusOr<ShardedTensor> Ones(
      const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
      const ShardedTensorOptions& options = {});

  // Every element is `value`, converted as by Tensor::Fill.
  template <typename T>
  static absl::StatusOr<ShardedTensor> Full(
      const ShardingSpecPtr& spec, absl::Span<const int64_t> size, T value,
      const ShardedTensorOptions& options = {}) {
    absl::StatusOr<ShardedTensor> result = Empty(spec, size, options);
    if (!result.ok()) return result;
    if (absl::Status status = result->Fill(value); !status.ok()) return status;
    return result;
  }

  // Uniform in [0, 1), or normal with mean 0 and deviation 1: each shard in
  // turn from this rank's DefaultGenerator(), as if it were a tensor of its
  // own. Ranks whose generators were seeded alike draw alike.
  static absl::StatusOr<ShardedTensor> Rand(
      const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
      const ShardedTensorOptions& options = {});
  static absl::StatusOr<ShardedTensor> Randn(
      const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
      const ShardedTensorOptions& options = {});

  // Creation. Collective.

  // Puts shards that the ranks have together; they are shared, not copied. The
  // spec is inferred (InferShardingSpec).
  //   kInvalidArgument  A shard does not fit its metadata; its "rank does not
  //                     match with the rank in its process group"; shards of a
  //                     rank, or of different ranks, differ in dtype or
  //                     requires_grad; sizes differ between ranks; nobody has a
  //                     shard: "have no local shards on all ranks"; shards
  //                     overlap or leave a gap; a tensor is not contiguous.
  //
  // Cost. Every rank receives the metadata of all shards.
  static absl::StatusOr<ShardedTensor> FromLocalShards(
      std::vector<Shard> local_shards, absl::Span<const int64_t> size,
      const ShardedTensorOptions& options = {});

  // Properties

  bool defined() const { return state_ != nullptr; }
  const ShardedTensorMetadata& metadata() const;
  const ShardingSpecPtr& spec() const;
  const std::shared_ptr<ProcessGroup>& group() const;
  // This rank's place in the group.
  int rank() const;

  // Of the global tensor.
  absl::Span<const int64_t> size() const;
  //   kOutOfRange  "Dimension out of range".
  absl::StatusOr<int64_t> size(int64_t dim) const;
  int64_t dim() const;
  int64_t numel() const;
  DType dtype() const;
  bool requires_grad() const;

  // This rank's shards, in the order of the metadata. A Tensor is a handle:
  // copy it to write to the shard.
  absl::Span<const Shard> local_shards() const { return local_shards_; }
  // Position of local_shards()[i] in metadata().shards.
  absl::Span<const int> local_shard_indices() const;

  // The tensor of the only local shard.
  //   kUnimplemented  "Only single local shard is supported."
  absl::StatusOr<Tensor> local_tensor() const;

  // Sets every element of the local shards. Not collective.
  template <typename T>
  absl::Status Fill(T value) {
    for (Shard& shard : local_shards_) {
      if (shard.tensor.device().is_meta()) continue;
      absl::Status status = shard.tensor.Fill(value);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // "ShardedTensor(ShardedTensorMetadata(…))".
  std::string ToString() const;

  // Moving data. Collective.

  // Leaves the whole tensor on the rank `dst_rank`, as a tensor of the same
  // dtype, and an undefined tensor on the others. Pieces go straight to their
  // place in the result.
  //
  // Buffers. `out`, if defined on the destination, is filled and returned; its
  // strides may be any. It must not overlap the shards.
  //   kInvalidArgument     `dst_rank` is not in the group or differs between
  //                        ranks; `out` "must NOT be specified on
  //                        non-destination ranks"; its size "… but should be …"
  //                        or its dtype is not this tensor's.
  //   kFailedPrecondition  A shard or `out` is not in host memory.
  //   kResourceExhausted   No memory for the result.
  absl::StatusOr<Tensor> Gather(int dst_rank = 0, Tensor out = Tensor(),
                                const ReshardOptions& options = {}) const;

  // Gives this tensor the layout `target`: any layout to any other. Contents,
  // size and dtype stay.
  //
  // Errors. Whatever the error, this rank's tensor is unchanged; after the loss
  // of a peer, other ranks may have the new layout.
  //   kInvalidArgument     `target` does not fit the size, or differs between
  //                        ranks.
  //   kFailedPrecondition  A shard is not in host memory.
  //   kResourceExhausted   No memory for the new shards.
  //
  // Memory. The new shards beside the old ones, and options.max_staging_bytes.
  // Copies of this object keep the old shards alive.
  //
  // Cost. Only elements that change rank are sent, each once. One small round
  // of agreement; no data moves if the layout is the same already.
  absl::Status Reshard(const ShardingSpecPtr& target,
                       const ReshardOptions& options = {});

  // Copies the contents into the shards of `dst`, whatever its layout: Reshard
  // without new memory, for repeated use.
  //   kInvalidArgument     Size, dtype or group differ, or the memory of the
  //                        shards overlaps.
  //   kFailedPrecondition  A shard is not in host memory, or not writable.
  absl::Status ReshardInto(ShardedTensor& dst,
                           const ReshardOptions& options = {}) const;

 private:
  friend absl::StatusOr<ShardedTensor> ShardTensor(
      const Tensor& tensor, const ShardingSpecPtr& spec, int src_rank,
      std::shared_ptr<ProcessGroup> group, const ReshardOptions& options);

  // What all copies share and nobody changes.
  struct State;

  static absl::StatusOr<std::shared_ptr<const State>> MakeState(
      std::shared_ptr<ProcessGroup> group, const ShardingSpecPtr& spec,
      absl::Span<const int64_t> size, const TensorProperties& properties);
  static absl::StatusOr<ShardedTensor> Allocate(
      std::shared_ptr<const State> state, Allocator* allocator);
  static absl::StatusOr<ShardedTensor> Scatter(
      const Tensor& tensor, const ShardingSpecPtr& spec, int src_rank,
      const std::shared_ptr<ProcessGroup>& group,
      absl::Span<const int64_t> size, DType dtype,
      const ReshardOptions& options);
  static absl::Status NotCreated(absl::string_view operation);

  const State& state() const;
  absl::Status PrepareOut(bool is_destination, Tensor& out) const;
  absl::StatusOr<ReshardExecutor> PrepareMove(
      const ShardedTensor& dst, const ReshardOptions& options) const;

  std::shared_ptr<const State> state_;
  // As many as the state has local indices.
  std::vector<Shard> local_shards_;
};

std::ostream& operator<<(std::ostream& out, const ShardedTensor& tensor);

// Cuts a tensor that one rank has and gives each rank its shards, as copies.
// Works for any spec.
//
// Collective. All ranks pass equal `spec` and `src_rank`. `tensor` is read on
// `src_rank`; others may pass an undefined one and learn size and dtype. A null
// `group` is the default group.
//   kInvalidArgument     "not a contiguous Tensor" or undefined on the source;
//                        a rank's argument "does not match with src_rank" or
//                        "does not match with sharding_spec"; the spec does not
//                        fit the size.
//   kFailedPrecondition  The tensor is not in host memory.
//   kResourceExhausted   No memory for a shard.
//
// Cost. Each element is sent at most once, straight to its place; two small
// rounds before.
absl::StatusOr<ShardedTensor> ShardTensor(
    const Tensor& tensor, const ShardingSpecPtr& spec, int src_rank = 0,
    std::shared_ptr<ProcessGroup> group = nullptr,
    const ReshardOptions& options = {});

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDED_TENSOR_H_
