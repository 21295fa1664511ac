#ifndef SHERD_CORE_SHARDING_TENSOR_SHARD_PUBLICATION_H_
#define SHERD_CORE_SHARDING_TENSOR_SHARD_PUBLICATION_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/sharding/sharded_tensor.h"

namespace sherd::internal {

// What the handles of a tensor created with init_rrefs share: its shards on
// this rank are published until the last handle goes.
class ShardPublication {
 public:
  // Nothing is published yet.
  ShardPublication(std::shared_ptr<RemoteAccess> access, PublicationId id)
      : access_(std::move(access)), id_(std::move(id)) {}
  ShardPublication(const ShardPublication&) = delete;
  ShardPublication& operator=(const ShardPublication&) = delete;
  ~ShardPublication();

  const std::shared_ptr<RemoteAccess>& access() const { return access_; }
  const PublicationId& id() const { return id_; }

  // Waits for what is queued for shards on devices.
  absl::Status Publish(const ShardedTensor& tensor);
  // Of what was published, under the number that the group has agreed on.
  absl::Status Renumber(uint64_t number, const ShardedTensor& tensor);

 private:
  const std::shared_ptr<RemoteAccess> access_;
  PublicationId id_;
  bool is_published_ = false;
};

// Publishes the shards of `created`, a tensor over `group` or the reason why
// this rank has none, for the workers of `access`. Of the elements those that
// they have when every rank has called it are seen by whoever reads.
//
// Collective over `group`; on what is no member it returns at once.
//
// Errors, the same on all members: that of `created`, and
//   kFailedPrecondition  "RPC Framework needs to be initialized": `access` is
//                        null, or was shut down.
//   kInvalidArgument     "Default ProcessGroup and RPC ranks must be the same".
// and those of RemoteAccess::Publish.
absl::StatusOr<ShardedTensor> PublishShards(
    absl::StatusOr<ShardedTensor> created,
    const std::shared_ptr<ProcessGroup>& group,
    std::shared_ptr<RemoteAccess> access);

// `result`, which a move or copy of `source` made, published anew if `source`
// is published. Collective then, as PublishShards.
absl::StatusOr<ShardedTensor> PublishAs(const ShardedTensor& source,
                                        ShardedTensor result);

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_TENSOR_SHARD_PUBLICATION_H_
