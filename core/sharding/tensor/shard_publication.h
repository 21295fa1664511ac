#ifndef SHERD_CORE_SHARDING_TENSOR_SHARD_PUBLICATION_H_
#define SHERD_CORE_SHARDING_TENSOR_SHARD_PUBLICATION_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/comm/collective_options.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"

namespace sherd::internal {

// Shared by the handles of a tensor created with init_rrefs: its shards on this
// rank are published until the last handle is destroyed.
class ShardPublication {
 public:
  // Nothing is published yet.
  ShardPublication(const std::shared_ptr<RemoteAccess>& access,
                   PublicationId id)
      : access_(access), id_(std::move(id)) {}
  ShardPublication(const ShardPublication&) = delete;
  ShardPublication& operator=(const ShardPublication&) = delete;
  ~ShardPublication();

  // Null once it is destroyed.
  std::shared_ptr<RemoteAccess> access() const { return access_.lock(); }
  const PublicationId& id() const { return id_; }

  // Waits for work queued for shards on devices.
  absl::Status Publish(const ShardedTensor& tensor);
  // Changes the number of the publication to the one that the group agreed on.
  absl::Status Renumber(uint64_t number, const ShardedTensor& tensor);

 private:
  // Its starter keeps it alive.
  const std::weak_ptr<RemoteAccess> access_;
  PublicationId id_;
  bool is_published_ = false;
};

// Of the properties that a reader must know: the same on workers outside the
// group, which do not know the indices of its devices.
uint64_t FingerprintForReaders(const ShardedTensorState& state);

// Publishes the shards of `created`, a tensor over `group` or the reason why
// this rank has none, for the workers of `access`: with their present
// elements.
//
// Collective over `group`. A process that is not a member takes a number and
// returns at once: with `created`, or an error of its own.
//
// Errors, the same on all members: that of `created`, and
//   kFailedPrecondition  "RPC Framework needs to be initialized": `access` is
//                        null, or was shut down.
//   kInvalidArgument     "Default ProcessGroup and RPC ranks must be the same".
// and those of RemoteAccess::Publish.
absl::StatusOr<ShardedTensor> PublishShards(
    absl::StatusOr<ShardedTensor> created,
    const std::shared_ptr<ProcessGroup>& group,
    const std::shared_ptr<RemoteAccess>& access);

// Publishes `result`, which `operation` made of `source`, if `source` is
// published and `result` is not. Collective then over the group of `source`,
// whose ranks made the result; errors as PublishShards, as those of
// `operation`.
absl::StatusOr<ShardedTensor> PublishAs(absl::string_view operation,
                                        const ShardedTensor& source,
                                        ShardedTensor result,
                                        const CollectiveOptions& options = {});

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_TENSOR_SHARD_PUBLICATION_H_
