#ifndef SHERD_SERIALIZATION_CHECKPOINT_SHARDED_LAYOUT_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SHARDED_LAYOUT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/box.h"
#include "sherd/serialization/checkpoint/save_plan.h"

namespace sherd {

// The properties of a ShardedTensor that checkpoints use, with the checks that
// save and load share.

// The layout of `tensor` on all ranks, replicas too.
//
// Errors. All name the tensor.
//   kInvalidArgument     The name is empty, too long or not UTF-8; the tensor
//                        belongs to another group, or to none.
//   kFailedPrecondition  It is not defined, a local shard has no data, or this
//                        process is not a member of the group.
absl::StatusOr<TensorToSave> DescribeTensor(const std::string& name,
                                            const ShardedTensor& tensor,
                                            const ProcessGroup& group);

// Adds everything about a layout that ranks must agree on.
void AddToFingerprint(const TensorToSave& layout, Fingerprint& fingerprint);

// The layouts in the form of AgreedValue::describe.
std::string DescribeForAgreement(absl::Span<const TensorToSave> layouts);

// The tensor of the local shard at position `shard` of the metadata, which is
// on this rank.
Tensor LocalShard(const ShardedTensor& tensor, size_t shard);

// The elements of `box` of the global tensor, which are all in that shard; a
// view.
absl::StatusOr<Tensor> LocalPart(const ShardedTensor& tensor, size_t shard,
                                 BoxView box);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SHARDED_LAYOUT_H_
