#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_REPLICA_CHECK_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_REPLICA_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/comm/collective_options.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/serialization/checkpoint/save/save_layout.h"

namespace sherd {

// One tensor of a save, by its index in SaveLayout.
struct NamedTensor {
  const std::string* name = nullptr;
  const ShardedTensor* tensor = nullptr;
};

// Entry r: what rank r is to compare, in the order of the sets.
using ReplicaCrcs = std::vector<std::vector<uint32_t>>;

// The CRC-32C of the elements of this rank's replicas. `sets` are those of
// SaveLayoutBuilder. `progress` is called after each block and set; its error
// ends the work.
//
// Errors. Of reading a device; they name the tensor.
//
// Cost. One pass over the shards of this rank that others hold too.
absl::StatusOr<ReplicaCrcs> ReadReplicas(
    int world_size, absl::Span<const NamedTensor> tensors,
    absl::Span<const ReplicaSet> sets,
    absl::FunctionRef<absl::Status()> progress);

// Compares the replicas of shards, of which every rank has read its own.
//
// Collective. kDataLoss is returned on one rank only, for an agreement that
// follows.
//   kDataLoss  Replicas differ; the message names tensor and ranks. On the rank
//              that compares them.
//   others     Of the collective, on all ranks.
//
// Cost. An all_to_all_v with 4 bytes per shard and rank that holds it.
absl::Status CompareReplicas(ProcessGroup& group, const OperationLabel& what,
                             absl::Span<const NamedTensor> tensors,
                             absl::Span<const ReplicaSet> sets,
                             const ReplicaCrcs& crcs,
                             const CollectiveOptions& options);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_REPLICA_CHECK_H_
