#ifndef SHERD_CORE_SHARDING_TRANSFER_RESHARD_EXECUTOR_H_
#define SHERD_CORE_SHARDING_TRANSFER_RESHARD_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/transfer/shard_memory.h"
#include "sherd/core/sharding/transfer/transfer_strategy.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/storage.h"

namespace sherd {

class ReshardExecutor;

namespace internal {
// RunReshard with any peer memory, or none.
absl::Status RunReshardOver(ProcessGroup& group,
                            std::shared_ptr<PeerMemory> memory,
                            const OperationLabel& what,
                            absl::StatusOr<ReshardExecutor> executor,
                            const AgreedValue& value,
                            std::optional<absl::Duration> timeout);
}  // namespace internal

// The work of one rank. Sum over the ranks for totals.
struct ReshardStats {
  // The same on all ranks.
  TransferStrategy strategy = TransferStrategy::kNone;
  TransferReason reason = TransferReason::kNothingMoves;
  // Bytes that left this rank's shards for other ranks and that arrived in
  // them, independent of which rank made the copy. A box that several ranks get
  // counts once for each.
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  // Between shards of this rank,
  int64_t bytes_local = 0;
  // and the part of them that needed no copy, since source and destination are
  // the same memory.
  int64_t bytes_in_place = 0;
  // Copied to or from staging memory: 0 where runs were contiguous.
  int64_t bytes_staged = 0;
  // The bytes that this rank must receive under any plan; see ReshardPlan.
  int64_t lower_bound_bytes = 0;
  // The most staging memory in use at once. A move uses no other memory beside
  // the shards, except for lists of their pieces.
  int64_t staging_bytes = 0;
  // Of messages.
  int64_t rounds = 0;
};

struct ReshardOptions {
  // Upper bound on this rank's staging memory. The transfer is cut into rounds
  // to respect it. The same on all ranks.
  int64_t max_staging_bytes = int64_t{64} << 20;
  // False: by messages, also where ranks reach each other's host memory. The
  // same on all ranks.
  bool direct = true;
  // For each collective: the agreement and each exchange of data, or wait for
  // the other ranks' copies. Unset: the group's timeout.
  std::optional<absl::Duration> timeout = std::nullopt;
  // Allocates the result on its device, not staging memory. Null, and for other
  // devices: as in ShardedTensorOptions. Need not be the same on all ranks.
  Allocator* allocator = nullptr;
  // Set on success, if given.
  ReshardStats* stats = nullptr;
};

// Moves the elements of a plan, over any group and between any memory. For one
// use: Create on each rank, then RunReshard on all.
//
// Direct moves. Where ranks reach each other's shards (ProcessGroup's
// peer_memory and shard_allocator) each element is copied once, directly from
// the source shard to the destination shard: every rank reads its destination
// elements, or writes its source elements. TransferChooser
// (transfer_strategy.h) selects the strategy of a move; ReshardStats has it and
// the reason.
//
// Messages, otherwise. The copies of a pair of ranks are cut, by sizes that
// both ends know, into pieces that fill rounds of one all_to_all_v each; there
// is no more than one message per pair and round. Where the pieces of a round
// are one contiguous run of a shard they are sent or received in place;
// otherwise they are packed, row-major, one after the other. Packing of one
// round runs while the previous one is in transit, and so do local copies and
// unpacking. A box that several ranks get is sent to each of them: no backend
// offers a multicast of pieces.
//
// Devices. Where the shards of every rank in the move are on that rank's device
// of the group (ProcessGroup::device), the messages are too: packing a round,
// local copies included, is one launch on the device, unpacking it another,
// staging memory is on the device, and all of it is queued. Otherwise, where
// any shard is on a device, messages are in host memory: pieces of shards on
// devices are packed and unpacked through pinned memory by the devices, for
// which the host waits. This applies to devices and host memory mixed, to
// groups that have no device part and to devices that are not the group's. The
// ranks agree on the strategy in the round that they need anyway.
class ReshardExecutor {
 public:
  // Elements have `element_size` bytes; `world_size` is the group's. The
  // memory of every shard in a copy of this rank is listed; others may be.
  // Sources and destinations must not overlap, except that a destination may be
  // the memory of a source from which it gets the same elements: there nothing
  // is copied. Memory is borrowed until RunReshard returns. Queued work may use
  // memory of a device after RunReshard returns: free that memory in the order
  // of the current stream.
  //   kInvalidArgument    Memory of a shard is missing or given twice, or
  //                       options.max_staging_bytes does not hold four elements
  //                       for each of plan.max_peers().
  static absl::StatusOr<ReshardExecutor> Create(
      ReshardPlan plan, size_t element_size, int world_size,
      absl::Span<const SourceMemory> sources,
      absl::Span<const DestinationMemory> destinations,
      const ReshardOptions& options = {});

  // As Create, for a reduction with a plan of ReshardPlan::CreateReduction: the
  // destinations get the result of Reduce (reduction.h) over the summands in
  // the order of ranks, with the same bits over every backend. Sources are only
  // read. Always by messages; options.direct is ignored.
  //   kInvalidArgument    As Create, but options.max_staging_bytes holds four
  //                       elements for each other rank, and one. Or memory is
  //                       not of the host.
  //   other               Of CheckReduction.
  static absl::StatusOr<ReshardExecutor> CreateReduction(
      ReshardPlan plan, ReduceOp op, DType dtype, int world_size,
      absl::Span<const SourceMemory> sources,
      absl::Span<const DestinationMemory> destinations,
      const ReshardOptions& options = {});

  ReshardExecutor(ReshardExecutor&&) noexcept;
  ReshardExecutor& operator=(ReshardExecutor&&) noexcept;
  ~ReshardExecutor();

 private:
  class Impl;
  friend absl::Status internal::RunReshardOver(
      ProcessGroup& group, std::shared_ptr<PeerMemory> memory,
      const OperationLabel& what, absl::StatusOr<ReshardExecutor> executor,
      const AgreedValue& value, std::optional<absl::Duration> timeout);

  explicit ReshardExecutor(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// Lets the ranks agree that each of them has an executor, then runs it.
//
// Collective. `what` and `value` are the same on all ranks; the latter covers
// all inputs of the plan (see Agree), apart from the options. `timeout` is used
// by a rank that has no executor, and so no options.
//
// Completion. Returns when this rank's destinations are complete and its
// sources are free to change. After a direct move this holds on all ranks;
// otherwise others may still be moving data. With messages on devices, and for
// copies within one device, the work is queued on the calling thread's current
// streams when the call returns: then both hold for work queued there later.
//
// Errors. Sources are unchanged in all cases.
//   Before any data moved, the same on all ranks, and the group stays usable:
//     the lowest failed rank's `executor` status
//     kInvalidArgument    Arguments or options differ between ranks.
//     kResourceExhausted  There is no staging memory.
//   Afterwards, and then destinations are unspecified:
//     those of ProcessGroup's collectives and of devices, and the group is
//     poisoned; of what was queued, a later call has the error
//     kInternal           A rank could not copy, which is a defect; the same on
//                         all ranks, and the group stays usable.
// If a rank only fails to map another one's memory, messages are used.
//
// Cost. One all_gather of 504 bytes per rank on one host, of 48 across hosts;
// then either the messages, or the copies and another one of 32. A second one
// precedes them if a rank has more shards than fit, or if only messages in host
// memory remain possible.
absl::Status RunReshard(ProcessGroup& group, const OperationLabel& what,
                        absl::StatusOr<ReshardExecutor> executor,
                        const AgreedValue& value,
                        std::optional<absl::Duration> timeout = std::nullopt);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_TRANSFER_RESHARD_EXECUTOR_H_
