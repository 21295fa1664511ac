#ifndef SHERD_CORE_SHARDING_SHARDED_TENSOR_H_
#define SHERD_CORE_SHARDING_SHARDED_TENSOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/tensor/shard_fill.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/core/tensor/types/tensor_properties.h"

namespace sherd {

class RemoteShard;

namespace internal {
class ShardedTensorAccess;
struct ShardedTensorState;
}  // namespace internal

struct ShardedTensorOptions {
  // Type of the elements, independent of the type of a fill value.
  DType dtype = kFloat32;
  // Null: DefaultGroup().
  std::shared_ptr<ProcessGroup> group = nullptr;
  bool requires_grad = false;
  // Shards in host memory are in pinned memory, where there is a device that
  // would use it: faster to and from devices, but out of reach for peers, so
  // that shards move between ranks by messages.
  bool pin_memory = false;
  // Values other than the defaults are refused.
  Layout layout = Layout::kStrided;
  MemoryFormat memory_format = MemoryFormat::kContiguous;
  // For local shards on its device. Null, and for shards on other devices: the
  // group's shard_allocator(), from which peers can copy without messages, or
  // the memory of the device. Must outlive them.
  Allocator* allocator = nullptr;
  // Provides the ranks of workers that placements name, in this and in later
  // layouts of the tensor, and lets them read the shards. Null:
  // DefaultRemoteAccess(), if there is one. The tensor does not keep it alive.
  std::shared_ptr<RemoteAccess> workers = nullptr;
  // Whether the other workers may read the shards: see remote_shards().
  // Creation is then collective over the group. A worker outside the group
  // reads them if it creates the same tensors with init_rrefs over the group,
  // all of them and in the same order: workers count them. Otherwise it gets an
  // error or, for one of the same size, boxes and dtype, another tensor.
  bool init_rrefs = false;
};

// Marks a size that is determined by the shards; see FromLocalShards.
inline constexpr int64_t kUnknownSize = -1;

// The properties that To changes; unset properties stay.
struct ToOptions {
  std::optional<DType> dtype = std::nullopt;
  // Of this rank's shards. Ranks pass one type, and each an index of its own;
  // without an index shards on devices of that type stay, and others go to the
  // allocator's device, the rank's in the group, or else the current one.
  std::optional<Device> device = std::nullopt;
  // Null: the tensor's. Another group must hold the owners of all shards.
  std::shared_ptr<ProcessGroup> group = nullptr;
  // Whether shards are copied even if nothing changes.
  bool copy = false;
  // Allocates new shards, as in ShardedTensorOptions.
  Allocator* allocator = nullptr;
};

// A tensor in boxes on the ranks of a group. Every rank knows all boxes and
// holds the elements of its own; a rank may have none, one or several.
//
// Value. A handle: copying it is cheap and shares the elements of the shards
// and the metadata. Layout, dtype and requires_grad are the handle's: Reshard
// on a copy gives that copy new shards and leaves the others as they were.
//
// Memory. Shards may share memory with those of other tensors, as views do, and
// with one another. Such tensors can be read; an operation other than Fill that
// writes to a tensor whose own shards share memory, or have elements that
// coincide, returns kInvalidArgument. Rules about shared memory apply to the
// memory of one rank: ranks do not compare their memory.
//
// Ranks. Placements name global ranks, entries of group()->world_ranks();
// arguments like `dst_rank` are ranks of the group.
//
// Collectives are called by every rank of the group, in the same order as its
// other collectives and with equal arguments, even by ranks without shards.
// Before data moves the ranks agree that all of them can continue. Therefore,
// in a collective:
//
//   - An argument that is wrong on one rank, or memory that one rank does not
//     have, is the same error on all, with the rank in message and ErrorInfo.
//     Nothing has changed and the group stays usable.
//   - A rank that dies or times out leads to kUnavailable or kDeadlineExceeded,
//     which names it, and the group is poisoned. A tensor that the call creates
//     or replaces is unchanged; a tensor that it fills is unspecified. Ranks
//     that had finished may have returned OK.
//
// Without a group. A tensor that WithoutGroup made has all its metadata and the
// shards that are in this process, of any ranks. Operations that need no other
// rank work; Gather and other moves of data between ranks return
// kFailedPrecondition.
//
// On a process that is not a member of the group a tensor has metadata and no
// local shards; collectives return kFailedPrecondition, like those of the
// group.
//
// Devices. Shards may be in host memory and on devices, also of one tensor; a
// rank may use several. "cuda" without an index is the owner's device in the
// group (ProcessGroup::devices) and is stored with its index. In a group
// without a device part it is the current device of the thread that creates the
// shard: To and FromLocalShards, which exchange it between ranks, store its
// index; functions that are not collective leave it out. A missing index then
// matches any index, except that of the tensors themselves. Without a device
// plugin, or an allocator for the device, device shards are kUnimplemented;
// shards on `meta` have no data.
//
// Completion. An operation that creates, fills or moves shards on a device
// queues that work on the calling thread's current stream of the device
// (device_stream.h) and returns: later work on that stream sees the result, the
// host waits for it by DeviceRuntime::Synchronize or ProcessGroup::Synchronize.
// Copies between devices and host memory, and messages through host memory (see
// ReshardExecutor), are complete when the call returns. The next call returns
// an error of queued work, and the group is poisoned. Operations that move data
// between ranks cannot be captured into a graph.
//
// Threads. Like a standard container: const calls may run concurrently, but
// collectives need an order that all ranks share.
class ShardedTensor {
 public:
  // Not a tensor yet: defined() is false. Only assignment, and functions that
  // document an error for this case, may be called.
  ShardedTensor() = default;

  // Creation. Not collective: no rank waits for another, and the others do not
  // know of an error on one rank until a collective misses that rank. With
  // init_rrefs it is collective, and an error of one member is that of all.
  //
  // `spec`, `size` and options are the same on every rank; the first collective
  // detects a difference.
  //   kInvalidArgument     "Expecting ShardingSpec", "Only torch.strided layout
  //                        is currently supported", "Only
  //                        torch.contiguous_format memory_format is currently
  //                        supported"; sizes are negative or overflow; from
  //                        BuildValidatedMetadata or RankResolver::Resolve.
  //   kFailedPrecondition  There is no default group; "Only dense CPU tensors
  //                        can be pinned"; a worker's name without `workers`.
  //   kUnimplemented       A shard is on a device without a driver and without
  //                        an allocator for it.
  //   kOutOfRange          The device does not exist.
  //   kResourceExhausted   There is no memory for a shard.
  // and the errors of Tensor for the value. With init_rrefs also
  //   kFailedPrecondition  "RPC Framework needs to be initialized".
  //   kInvalidArgument     "Default ProcessGroup and RPC ranks must be the
  //                        same": a worker's rank is the global rank.

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
    absl::StatusOr<ShardedTensor> result = Allocate(spec, size, options);
    if (result.ok()) {
      absl::Status status = result->Fill(value);
      if (!status.ok()) result = std::move(status);
    }
    return Publish(std::move(result), options);
  }

  // Uniform in [0, 1), or normal with mean 0 and deviation 1; dtype is a
  // floating-point or complex one. By default each element is drawn by its
  // index in the global tensor, from generators that are equal on all ranks:
  // see RandomStream, also for the alternative.
  static absl::StatusOr<ShardedTensor> Rand(
      const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
      const ShardedTensorOptions& options = {},
      const RandomOptions& random = {});
  static absl::StatusOr<ShardedTensor> Randn(
      const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
      const ShardedTensorOptions& options = {},
      const RandomOptions& random = {});

  // Creation from existing shards. They are shared, not copied. The dtype is
  // theirs; that of the options is used on ranks without shards.

  // Assembles a tensor from the ranks' shards. The spec is inferred
  // (InferShardingSpec). Collective.
  //
  // Unknown sizes. Where `size` has entries kUnknownSize, the shards follow
  // each other along the first such dimension: those of rank 0 in the order
  // given, then those of rank 1, …. Their offsets are computed and the given
  // ones ignored; sizes come from the tensors, also in other dimensions that
  // are unknown, and add up to the size of the tensor.
  //
  //   kInvalidArgument  On this rank, shard by shard in this order: the
  //                     placement does not resolve; "Only torch.strided layout
  //                     is currently supported"; "Only torch.contiguous_format
  //                     memory_format is currently supported"; "rank does not
  //                     match with the rank in its process group"; "Local shard
  //                     tensor device does not match with local Shard's
  //                     placement"; pin_memory is not what its memory is, its
  //                     size not that of its metadata, or its dtype not that of
  //                     the first: "property need to be the same on rank:".
  //                     Between ranks that have shards: global_size, dtype,
  //                     requires_grad, pin_memory, in this order, "property
  //                     does not match from different ranks!". Then "have no
  //                     local shards on all ranks"; shards overlap or leave a
  //                     gap.
  //   kFailedPrecondition
  //                     There is no default group, or this process is not a
  //                     member of the group; a placement is a worker's name
  //                     without `workers`, or its device is malformed; "Only
  //                     dense CPU tensors can be pinned".
  //
  // Cost. Every rank receives the metadata of all shards.
  static absl::StatusOr<ShardedTensor> FromLocalShards(
      std::vector<Shard> local_shards, absl::Span<const int64_t> size,
      const ShardedTensorOptions& options = {});

  // Each rank passes the tensor of its only shard; a rank without shards passes
  // an undefined one, and sets options.dtype. Not collective, but for
  // init_rrefs: the first collective checks that the ranks' tensors match
  // `spec`.
  //   kInvalidArgument  "local_tensor is not a contiguous Tensor."; "Shard
  //                     tensor size does not match" the shard that `spec` gives
  //                     to this rank; or it gives several, or none.
  //   kFailedPrecondition
  //                     There is no default group.
  // and otherwise as Empty, for spec, size and options.
  static absl::StatusOr<ShardedTensor> FromLocalTensor(
      Tensor local_tensor, const ShardingSpecPtr& spec,
      absl::Span<const int64_t> size, const ShardedTensorOptions& options = {});

  // Each rank passes its shards and the metadata of all. Of the options only
  // group, workers and init_rrefs are used. `spec` null: inferred. Not
  // collective, as FromLocalTensor.
  //
  // Layout. The i-th of `local_shards` corresponds to the i-th entry of this
  // rank in `metadata`; the spec builds the result's metadata.
  //
  // Errors. In this order:
  //   kFailedPrecondition  There is no default group.
  //   kInvalidArgument, kFailedPrecondition
  //                        A placement does not resolve.
  //   kFailedPrecondition  Number of local shards "does not match number of
  //                        local shards metadata".
  //   kInvalidArgument     "shards_metadata must not be empty!"; "Only
  //                        torch.strided layout is currently supported"; from
  //                        inferring the spec or from BuildMetadata; "Only
  //                        torch.contiguous_format memory_format is currently
  //                        supported"; size, pin_memory, device, dtype:
  //                        "Local shards' tensor … property is incompatible
  //                        with"; shards overlap or leave a gap.
  static absl::StatusOr<ShardedTensor> FromLocalShardsAndMetadata(
      std::vector<Shard> local_shards, const ShardedTensorMetadata& metadata,
      const ShardedTensorOptions& options = {},
      const ShardingSpecPtr& spec = nullptr);

  // "All shards here": no group is needed, before Init or in a tool. `shards`
  // are those of `metadata` that this process has, of any ranks and on any
  // devices, with any strides. `spec` null: inferred.
  //   kInvalidArgument  "shards_metadata must not be empty!"; "Only
  //                     torch.strided layout is currently supported"; from
  //                     inferring the spec or from BuildMetadata; shards
  //                     overlap or leave a gap; a shard is not in the metadata,
  //                     or its tensor has another size or dtype.
  //   kFailedPrecondition
  //                     A placement's device is malformed.
  static absl::StatusOr<ShardedTensor> WithoutGroup(
      std::vector<Shard> shards, const ShardedTensorMetadata& metadata,
      const ShardingSpecPtr& spec = nullptr);

  // Properties. Only SetRequiresGrad and moves change them.

  bool defined() const { return state_ != nullptr; }
  const ShardedTensorMetadata& metadata() const;
  const ShardingSpecPtr& spec() const;
  // Null without a group.
  const std::shared_ptr<ProcessGroup>& group() const;
  // This process's rank in the group: -1 if it is not a member, 0 without a
  // group.
  int rank() const;

  // Of the global tensor.
  absl::Span<const int64_t> size() const;
  // -1 is the last dimension.
  //   kOutOfRange  "Dimension out of range".
  absl::StatusOr<int64_t> size(int64_t dim) const;
  int64_t dim() const;
  int64_t numel() const;
  DType dtype() const;
  Layout layout() const;
  // Of the first local shard; without one, of the first of all.
  Device device() const;
  bool requires_grad() const;
  bool is_floating_point() const;
  bool is_complex() const;
  // Of every local shard. False for views only.
  bool is_contiguous() const;
  bool is_pinned() const;
  // Whether no shard of any rank has data.
  bool is_meta() const;

  // For this handle. Not collective, but to be called by all ranks.
  //
  // Cost. If it changes anything, a copy of the metadata.
  void SetRequiresGrad(bool requires_grad);

  // A handle of the same elements, without requires_grad.
  //
  // Cost. Nothing is copied but, if requires_grad() is set, the metadata.
  ShardedTensor Detach() const;

  // The shards of other workers, by global rank: of every rank but this one
  // that has shards, also on a worker that is not a member of the group; its
  // ToHere waits for publications that the members have not made yet. See
  // remote_shards.h.
  //
  // Reshard, Resharded, To, Clone and what is made of them publish their
  // results anew, in one more round of agreement over this tensor's group, and
  // fail like creation where there is no RPC; the shards of before are
  // withdrawn with the last handle that has them. Views are not published.
  //   kFailedPrecondition  "ShardedTensor created with init_rrefs=False"; the
  //                        tensor was not created; RPC has been shut down.
  absl::StatusOr<std::map<int, std::vector<RemoteShard>>> remote_shards() const;

  // This rank's shards, in the order of the metadata. A Tensor is a handle:
  // copy it to write to the shard.
  absl::Span<const Shard> local_shards() const;
  // Position of local_shards()[i] in metadata().shards.
  absl::Span<const int> local_shard_indices() const;
  // The shards of metadata() with the ranks in the group that own them; for a
  // process that is not a member, -1 for owners outside the group. Empty
  // without a group.
  absl::Span<const PlacedBox> placed_boxes() const;

  // The tensor of the only local shard.
  //   kUnimplemented  "Only single local shard is supported."
  absl::StatusOr<Tensor> local_tensor() const;

  // Sets every element of the local shards. Not collective; a value that the
  // dtype cannot hold is refused on every rank, also without shards.
  template <typename T>
  absl::Status Fill(T value) {
    if (!defined()) return absl::OkStatus();
    absl::StatusOr<Tensor> none = Tensor::Empty({0}, {.dtype = dtype()});
    if (!none.ok()) return none.status();
    if (absl::Status status = none->Fill(value); !status.ok()) return status;
    for (const Shard& shard : local_shards()) {
      if (shard.tensor.device().is_meta()) continue;
      Tensor tensor = shard.tensor;
      absl::Status status = tensor.Fill(value);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // A fingerprint of size, properties and layout, and of a view's offsets;
  // ranks compare it to verify that they pass the same tensor.
  uint64_t fingerprint() const;

  // "ShardedTensor(ShardedTensorMetadata(…))".
  std::string ToString() const;

  // Returns the box of `sizes` at `offsets` as a view: it shares the elements,
  // and moving it moves only the box. Not collective, but arguments are the
  // same on all ranks.
  //
  // Layout. The shards are those of this tensor that meet the box, cut to it,
  // in the same order; offsets count from the corner of the box. A box without
  // elements has one empty shard. The spec is inferred.
  //   kOutOfRange  The box is not inside the tensor.
  //
  // Cost. O(shards); no data moves.
  absl::StatusOr<ShardedTensor> Narrow(absl::Span<const int64_t> offsets,
                                       absl::Span<const int64_t> sizes) const;
  // The elements [start, start + length) of one dimension.
  absl::StatusOr<ShardedTensor> Narrow(int64_t dim, int64_t start,
                                       int64_t length) const;

  // Moving data. Collective.

  // Returns the whole tensor on the rank `dst_rank`, as a tensor of the same
  // dtype, and an undefined tensor on the others. Pieces are received directly
  // into the result.
  //
  // Buffers. `out`, if defined on the destination, is filled and returned; its
  // strides may be any, and it may be in host memory or on a device,
  // independent of the shards. It shares no memory with the shards. Without
  // `out` the result is on the device of the destination's first shard; if the
  // destination has none, on the group's device() if the first shard of all is
  // on one of that type, and otherwise in host memory.
  //   kInvalidArgument     `dst_rank` is not in the group or differs between
  //                        ranks; `out` "must NOT be specified on
  //                        non-destination ranks"; its size "… but should be …"
  //                        or its dtype is not this tensor's; its memory
  //                        overlaps that of the shards, or its elements
  //                        coincide.
  //   kFailedPrecondition  A shard or `out` has no data.
  //   kResourceExhausted   There is no memory for the result.
  absl::StatusOr<Tensor> Gather(int dst_rank = 0, Tensor out = Tensor(),
                                const ReshardOptions& options = {}) const;

  // As Gather, on every rank: each gets the whole tensor, in its `out` if it
  // passes one.
  absl::StatusOr<Tensor> AllGather(Tensor out = Tensor(),
                                   const ReshardOptions& options = {}) const;

  // Changes the layout of this tensor to `target`, from any layout to any
  // other. Contents, size and dtype stay.
  //
  // Errors. After any error this rank's tensor is unchanged; after the failure
  // of a peer, other ranks may have the new layout.
  //   kInvalidArgument     `target` does not fit the size, or differs between
  //                        ranks.
  //   kFailedPrecondition  A shard has no data: it is on `meta`.
  //   kResourceExhausted   There is no memory for the new shards.
  //
  // Memory. The new shards beside the old ones, and options.max_staging_bytes.
  // A box that stays on its rank keeps its memory, unless another handle shares
  // it or options.allocator is given. Copies of this object keep the old shards
  // alive.
  //
  // Cost. Only elements that change rank are sent, each once. One small round
  // of agreement; no data moves if the layout is the same already.
  absl::Status Reshard(const ShardingSpecPtr& target,
                       const ReshardOptions& options = {});

  // As Reshard, but returns a new tensor, whose elements are always its own.
  absl::StatusOr<ShardedTensor> Resharded(
      const ShardingSpecPtr& target, const ReshardOptions& options = {}) const;

  // Copies the contents into the shards of `dst`, which may have any layout:
  // Reshard without new memory, for repeated use. `dst` may be a view.
  //   kInvalidArgument     Size, dtype or group differ; a shard of `dst` shares
  //                        memory with another one or, on the same rank, with
  //                        one of this tensor.
  //   kFailedPrecondition  A shard has no data, or is not writable.
  absl::Status ReshardInto(ShardedTensor& dst,
                           const ReshardOptions& options = {}) const;

  // Local copies on each rank. Collective: the ranks agree that all of them
  // succeed or none does. Without a group: in this process only.

  // Fills the shards from those of `src`, which has the same layout. The two
  // may share memory in any way: the result is as if `src` had been copied
  // before.
  //   kFailedPrecondition  "inplace copy can only happen between two
  //                        ShardedTensor with same metadata!": size, boxes or
  //                        placements differ; ReshardInto takes any. Or a
  //                        shard has no data, or is not writable.
  //   kInvalidArgument     The dtype or group differs; shards of this tensor
  //                        share memory.
  //   kResourceExhausted   There is no memory for a copy of the source.
  //
  // Cost. Where a shard of this rank shares memory with one of `src` that is
  // not its own counterpart, element by element, a copy of the shards of `src`.
  absl::Status CopyFrom(const ShardedTensor& src);

  // Returns a copy in memory of its own, contiguous, on the same devices.
  absl::StatusOr<ShardedTensor> Clone(Allocator* allocator = nullptr) const;

  // Returns the tensor with another dtype (values as by Tensor::To), on another
  // device, or in another group. Unchanged shards are shared; see
  // ToOptions::copy.
  //   kInvalidArgument     "Global rank N does not exist in input process
  //                        group"; without a group, the shards here are not
  //                        those of this rank in the new one; ranks pass
  //                        different types of devices, dtypes or groups.
  //   kFailedPrecondition  The device was made from malformed text.
  //   kUnimplemented       "Cannot copy out of meta tensor; no data!"; or that
  //                        device has no driver; or one of two different dtypes
  //                        is carried.
  //   kOutOfRange          The device does not exist.
  //   kResourceExhausted   No memory.
  // Dtypes are converted in host memory.
  //
  // The ranks of this tensor's group agree, also where options.group is
  // another; after a failure that poisoned it, FromLocalShardsAndMetadata puts
  // the remaining shards into a new group.
  //
  // Layout. Boxes and their order stay; placements get the device that their
  // owner chose, with its index, and so does the spec (WithPlacements). Shards
  // that leave the CPU are not pinned.
  absl::StatusOr<ShardedTensor> To(const ToOptions& options) const;
  absl::StatusOr<ShardedTensor> To(DType dtype) const {
    return To(ToOptions{.dtype = dtype});
  }
  absl::StatusOr<ShardedTensor> To(Device device) const {
    return To(ToOptions{.device = device});
  }
  absl::StatusOr<ShardedTensor> To(std::shared_ptr<ProcessGroup> group) const {
    return To(ToOptions{.group = std::move(group)});
  }
  absl::StatusOr<ShardedTensor> Cpu() const { return To(Device()); }
  // As To, onto each rank's device: see ToOptions::device.
  absl::StatusOr<ShardedTensor> Cuda(Allocator* allocator = nullptr) const {
    return To(ToOptions{.device = DeviceType::kCuda, .allocator = allocator});
  }

 private:
  friend class internal::ShardedTensorAccess;

  using State = internal::ShardedTensorState;

  ShardedTensor(std::shared_ptr<const State> state,
                std::shared_ptr<const std::vector<Shard>> shards);

  // Steps of creation: Empty without init_rrefs; a random tensor; and what
  // init_rrefs adds once the elements are there, or the reason why they are
  // not.
  static absl::StatusOr<ShardedTensor> Allocate(
      const ShardingSpecPtr& spec, absl::Span<const int64_t> size,
      const ShardedTensorOptions& options);
  static absl::StatusOr<ShardedTensor> Draw(const ShardingSpecPtr& spec,
                                            absl::Span<const int64_t> size,
                                            const ShardedTensorOptions& options,
                                            const RandomOptions& random,
                                            DrawShard draw);
  static absl::StatusOr<ShardedTensor> Publish(
      absl::StatusOr<ShardedTensor> created,
      const ShardedTensorOptions& options);

  const State& state() const;

  // Shared by all copies and immutable. As many shards as the state has local
  // indices.
  std::shared_ptr<const State> state_;
  std::shared_ptr<const std::vector<Shard>> local_shards_;
};

std::ostream& operator<<(std::ostream& out, const ShardedTensor& tensor);

// Cuts a tensor that one rank has and gives each rank its shards, as copies.
// Works for any spec; a spec that is a TensorScatterer uses its own method.
//
// Collective. All ranks pass equal `spec` and `src_rank`. `tensor` is read on
// `src_rank`; others may pass an undefined one and learn size and dtype. A null
// `group` is the default group.
//   kInvalidArgument     "not a contiguous Tensor" or undefined on the source;
//                        a rank's argument "does not match with src_rank" or
//                        "does not match with sharding_spec"; the spec does not
//                        fit the size.
//   kFailedPrecondition  The tensor has no data.
//   kResourceExhausted   There is no memory for a shard.
//
// Devices. The tensor may be in host memory or on a device, independent of the
// placement of the shards.
//
// Cost. Each element is sent at most once, directly to its destination; two
// small rounds before.
absl::StatusOr<ShardedTensor> ShardTensor(
    const Tensor& tensor, const ShardingSpecPtr& spec, int src_rank = 0,
    std::shared_ptr<ProcessGroup> group = nullptr,
    const ReshardOptions& options = {});

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDED_TENSOR_H_
