#ifndef SHERD_CORE_SHARDING_SHARDED_TENSOR_TRANSFER_H_
#define SHERD_CORE_SHARDING_SHARDED_TENSOR_TRANSFER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"

namespace sherd {

// Copies a tensor from the ranks of one group to those of another, in any
// layout: a trainer's weights to the ranks that serve them. Both groups lie
// inside `parent`; they may be disjoint, overlap or be the same.
//
// Collective over `parent`; each rank passes what it has:
//   - A rank of the source's group passes its tensor as `source`; it may be a
//     view (Narrow). Others pass an undefined one.
//   - A rank of the target group passes that group and `spec`, the layout
//     there. Others pass a null group, or one of which they are not a member;
//     their `spec` is ignored.
//   - A rank outside both takes part in the agreement and receives only
//     metadata.
//
// Result. The tensor on the ranks of the target group, with the source's size,
// dtype, requires_grad and pin_memory; an undefined one on others. The source
// is unchanged.
//
// Errors. The same on every rank of `parent`; nothing has changed.
//   kInvalidArgument     No rank has a source, or no rank has a target group; a
//                        rank of one of the two groups did not pass it, or
//                        passed another; a group's rank is not in `parent`;
//                        sources or specs differ; the spec does not fit.
//   kFailedPrecondition  The source has no group, or a shard is not in host
//                        memory.
//   kResourceExhausted   No memory for a shard.
// and the errors of RunReshard.
//
// Cost. Each element is sent directly from a rank that has it to each that
// needs it. Six small rounds before that of RunReshard, in which the metadata
// of both layouts reaches every rank.
absl::StatusOr<ShardedTensor> TransferBetweenGroups(
    ProcessGroup& parent, const ShardedTensor& source,
    const std::shared_ptr<ProcessGroup>& target_group,
    const ShardingSpecPtr& spec, const ReshardOptions& options = {});

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDED_TENSOR_TRANSFER_H_
