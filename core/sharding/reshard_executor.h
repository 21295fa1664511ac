#ifndef SHERD_CORE_SHARDING_RESHARD_EXECUTOR_H_
#define SHERD_CORE_SHARDING_RESHARD_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/reshard_plan.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {

// What one rank did. Add up over the ranks for totals.
struct ReshardStats {
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  // Copied between shards of this rank.
  int64_t bytes_local = 0;
  // Copied to or from staging memory: 0 where runs were contiguous.
  int64_t bytes_staged = 0;
  // What this rank must receive under any plan; see ReshardPlan.
  int64_t lower_bound_bytes = 0;
  // Staging memory that was in use at once, at most.
  int64_t staging_bytes = 0;
  int64_t rounds = 0;
};

struct ReshardOptions {
  // Upper bound on this rank's staging memory. The transfer is cut into rounds
  // to respect it. The same on all ranks.
  int64_t max_staging_bytes = int64_t{64} << 20;
  // For each exchange of data. Unset: the group's timeout, which also is that
  // of the agreement before.
  std::optional<absl::Duration> timeout;
  // Set on success, if given.
  ReshardStats* stats = nullptr;
};

// Where a source or destination shard of this rank lies in memory.
template <typename Pointer>
struct BasicShardMemory {
  // Position in the list `from` or `to` of the plan.
  int shard = 0;
  // The address of the element at `offsets` of the global tensor, and strides
  // in elements.
  Dims offsets;
  Dims strides;
  Pointer data = nullptr;
};
using SourceMemory = BasicShardMemory<const void*>;
using DestinationMemory = BasicShardMemory<void*>;

// Moves the elements that a plan says, over any group and between any memory.
// One use: Create on each rank, then Run on all.
//
// Messages. The copies of a pair of ranks are cut, by sizes that both ends
// know, into pieces that fill rounds of one all_to_all_v each; there is no more
// than one message per pair and round. Where the pieces of a round are one
// contiguous run of a shard they are sent or received in place; otherwise they
// are packed, row-major, one after the other. Packing of one round runs while
// the previous one is on its way, and so do local copies and unpacking.
class ReshardExecutor {
 public:
  // Elements have `element_size` bytes; `world_size` is the group's. The
  // memory of every shard in a copy of this rank is listed; others may be.
  // Sources and destinations must not overlap. Memory is borrowed until Run
  // returns; `plan` is not needed afterwards.
  //   kInvalidArgument    Memory of a shard is missing or given twice, or
  //                       options.max_staging_bytes does not hold four elements
  //                       for each of plan.max_peers().
  //   kResourceExhausted  No staging memory.
  static absl::StatusOr<ReshardExecutor> Create(
      const ReshardPlan& plan, size_t element_size, int world_size,
      absl::Span<const SourceMemory> sources,
      absl::Span<const DestinationMemory> destinations,
      const ReshardOptions& options = {});

  ReshardExecutor(ReshardExecutor&&) noexcept;
  ReshardExecutor& operator=(ReshardExecutor&&) noexcept;
  ~ReshardExecutor();

  // Rounds that this rank needs.
  int64_t rounds() const;

  // Collective. All ranks pass the largest rounds() of any rank; it travels in
  // an agreement (AgreeOnMaximum), or use RunReshard.
  //
  // Completion. Returns when this rank's destinations are complete and its
  // sources are free to change; other ranks may still be at it.
  //
  // Errors. Those of ProcessGroup::AllToAllV. Destinations are unspecified,
  // sources unchanged, and the group is poisoned.
  absl::Status Run(ProcessGroup& group, int64_t rounds_of_all);

 private:
  class Impl;
  explicit ReshardExecutor(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// Lets the ranks agree that each of them has an executor, then runs it.
//
// Collective. `what` and `fingerprint` are the same on all ranks; the latter
// covers whatever the plan was made from (see Agree).
//
// Errors. Before any data moved, and then the same on all ranks: the lowest
// failed rank's `executor` status. Afterwards as ReshardExecutor::Run.
absl::Status RunReshard(ProcessGroup& group, absl::string_view what,
                        absl::StatusOr<ReshardExecutor> executor,
                        uint64_t fingerprint);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_RESHARD_EXECUTOR_H_
