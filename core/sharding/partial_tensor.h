#ifndef SHERD_CORE_SHARDING_PARTIAL_TENSOR_H_
#define SHERD_CORE_SHARDING_PARTIAL_TENSOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// One rank's work for a reduction; AllReduce counts each byte of the tensor
// once.
struct PartialStats {
  // This rank's summands sent to others, and the others' summands received.
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  // Copied to or from staging memory: 0 where runs were contiguous.
  int64_t bytes_staged = 0;
  // The most staging memory in use at once.
  int64_t staging_bytes = 0;
  int64_t rounds = 0;
};

struct PartialOptions {
  // Upper bound on this rank's staging memory. The same on all ranks.
  int64_t max_staging_bytes = int64_t{64} << 20;
  // For each exchange of data. Unset: the group's.
  std::optional<absl::Duration> timeout;
  // Set on success, if given.
  PartialStats* stats = nullptr;
};

// A tensor of which every rank of a group holds a summand (or factor, …) of the
// size of the whole, such as the product of matrices that are sharded along the
// dimension which is summed over. The tensor itself is the reduction of all
// summands, and is computed when it moves.
//
// Value. A handle: copying it shares the local summand.
//
// Shards as summands. Where summands are themselves shards of something larger,
// as on one row of a mesh, a PartialTensor over that row's group represents the
// shard.
class PartialTensor {
 public:
  // Undefined; only assignment and defined() are allowed.
  PartialTensor() = default;

  // `local` is shared, not copied; any strides. Not collective: whether all
  // ranks have the same size, dtype and `op` is checked when data moves. A null
  // `group` is the default group.
  //   kInvalidArgument     `op` is not defined for the dtype (CheckReduction),
  //                        or `local` is undefined.
  //   kUnimplemented       The dtype is carried.
  //   kFailedPrecondition  `local` has no data; there is no default group, or
  //                        this rank is not in the group.
  static absl::StatusOr<PartialTensor> Create(
      Tensor local, ReduceOp op = ReduceOp::kSum,
      std::shared_ptr<ProcessGroup> group = nullptr);

  bool defined() const { return group_ != nullptr; }
  const Tensor& local() const { return local_; }
  ReduceOp op() const { return op_; }
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  // Of the local summand, and so of the whole.
  absl::Span<const int64_t> size() const { return local_.sizes(); }
  DType dtype() const { return local_.dtype(); }

  // Reduces and gives each rank its shards under `spec`, which may be any:
  // uneven, with empty shards, several per rank or none, replicas, boxes in any
  // number of dimensions.
  //
  // Collective over the group, with equal `spec` and options.
  //
  // Result. That of Reduce (reduction.h) over the ranks in their order: the
  // same bits over every backend, and in every replica.
  //
  // Errors. Before any data moved, and then the same on every rank; the local
  // summands are never written to.
  //   kInvalidArgument     Size, dtype, op, spec or options differ between
  //                        ranks; the message names which. `spec` does not fit
  //                        the size; or the staging bound does not hold four
  //                        elements for each other rank, and one.
  //   kFailedPrecondition  Not created, or a placement has no memory.
  //   kResourceExhausted   There is no memory for the shards or for staging.
  // Afterwards those of ProcessGroup::AllToAllV; the group is poisoned.
  //
  // Devices. The host reduces: a summand on a device is copied to host memory
  // first, and shards on devices are filled from there.
  //
  // Memory. The new shards, and options.max_staging_bytes; with replicas or
  // devices, also the part of them that this rank reduces. A contiguous run of
  // `local` is sent without staging.
  //
  // Cost. With P ranks and n bytes of shards of its own, a rank receives
  // (P - 1) n bytes: each of the P - 1 foreign summands of each element moves
  // once. Over all ranks that is the lower bound of any algorithm that does not
  // reduce in the network. A box with h replicas is reduced in h parts, one by
  // each of its holders, which then exchange them: (P - 1) n / h + (h - 1) n /
  // h.
  absl::StatusOr<ShardedTensor> Reshard(
      const ShardingSpecPtr& spec, const PartialOptions& options = {}) const;

  // Reduces and gives every rank the whole, as a new contiguous tensor with the
  // same bits on all ranks, on the device of the local summand. Where the
  // summands are on the group's devices, the device part reduces them and the
  // result is queued; otherwise the host does it.
  //
  // Collective. Errors as for Reshard; kInvalidArgument also if the summands of
  // some ranks are on the group's device and those of others are not.
  //
  // Cost. As ProcessGroup::AllReduce: each rank receives about twice the bytes.
  absl::StatusOr<Tensor> AllReduce(const PartialOptions& options = {}) const;

  // "PartialTensor(sum, float32, [4, 8], group default)".
  std::string ToString() const;

 private:
  PartialTensor(Tensor local, ReduceOp op, std::shared_ptr<ProcessGroup> group);

  Tensor local_;
  ReduceOp op_ = ReduceOp::kSum;
  std::shared_ptr<ProcessGroup> group_;
};

std::ostream& operator<<(std::ostream& out, const PartialTensor& tensor);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_PARTIAL_TENSOR_H_
