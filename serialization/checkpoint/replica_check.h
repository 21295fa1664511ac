#ifndef SHERD_SERIALIZATION_CHECKPOINT_REPLICA_CHECK_H_
#define SHERD_SERIALIZATION_CHECKPOINT_REPLICA_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/comm/collective_options.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/serialization/checkpoint/save_layout.h"

namespace sherd {

// One tensor of a save, by its index in SaveLayout.
struct NamedTensor {
  const std::string* name = nullptr;
  const ShardedTensor* tensor = nullptr;
};

// Compares the replicas of shards by the CRC-32C of their elements.
//
// Collective. `sets` are those of SaveLayoutBuilder on each rank. An error of a
// rank's own is returned on that rank only, for an agreement that follows.
//   kDataLoss  Replicas differ; the message names tensor and ranks. On the
//              lowest rank that holds one.
//   others     Of the collective, on all ranks; of reading a device, on one.
//
// Cost. One pass over the shards of this rank that others hold too; an
// all_to_all_v with 8 bytes per shard and rank that holds it.
absl::Status CompareReplicas(ProcessGroup& group, const OperationLabel& what,
                             absl::Span<const NamedTensor> tensors,
                             absl::Span<const ReplicaSet> sets,
                             const CollectiveOptions& options);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_REPLICA_CHECK_H_
