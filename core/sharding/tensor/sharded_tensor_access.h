#ifndef SHERD_CORE_SHARDING_TENSOR_SHARDED_TENSOR_ACCESS_H_
#define SHERD_CORE_SHARDING_TENSOR_SHARDED_TENSOR_ACCESS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/shard_fill.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"

namespace sherd::internal {

// Internals of ShardedTensor for its implementation, hidden from users.
class ShardedTensorAccess {
 public:
  // `shards` are those of the state's local indices.
  static ShardedTensor Make(ShardedTensorStatePtr state, LocalShards shards) {
    return ShardedTensor(std::move(state), std::move(shards));
  }
  // Null if the tensor was not created.
  static const ShardedTensorStatePtr& StateOf(const ShardedTensor& tensor) {
    return tensor.state_;
  }
  static const LocalShards& ShardsOf(const ShardedTensor& tensor) {
    return tensor.local_shards_;
  }

  // Brings what is looked at of each into the cache: all of them at the same
  // time, where a loop that uses one after another would wait for each of its
  // pointers. Null ones, and tensors that were not created, are passed over.
  static void Prefetch(absl::Span<const ShardedTensor* const> tensors);

  // FillRandomly of sharded_tensor_fill.h.
  static absl::Status FillRandomly(ShardedTensor& tensor,
                                   const RandomOptions& options,
                                   DrawShard draw);

  // In new memory, contents unspecified.
  static absl::StatusOr<ShardedTensor> Allocate(ShardedTensorStatePtr state,
                                                Allocator* allocator);
};

// The fingerprint of the plan's inputs, which ranks compare before they move
// data.
uint64_t FingerprintOfCall(uint64_t source, uint64_t target);

// Describes the tensor for AgreedValue::describe; `name`: its role in the call.
std::string DescribeForAgreement(absl::string_view name,
                                 const ShardedTensor& tensor);

//   kInvalidArgument  `rank` is not a rank of the group; `name`: of the
//                     argument.
absl::Status CheckRank(const ProcessGroup& group, int rank,
                       absl::string_view name);

// `group`, or the default group for null.
absl::StatusOr<std::shared_ptr<ProcessGroup>> GroupOrDefault(
    std::shared_ptr<ProcessGroup> group);

// options.workers, or the default for null: null if there is none.
std::shared_ptr<RemoteAccess> WorkersOrDefault(
    const ShardedTensorOptions& options);

// The group on which the collective `operation` of `tensor` runs.
//   kFailedPrecondition  The tensor was not created, has no group, or this
//                        process is not a member of it.
absl::StatusOr<ProcessGroup*> GroupFor(const ShardedTensor& tensor,
                                       absl::string_view operation);
absl::Status NotCreated(absl::string_view operation);
absl::Status CheckMember(const ProcessGroup& group,
                         absl::string_view operation);

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_TENSOR_SHARDED_TENSOR_ACCESS_H_
