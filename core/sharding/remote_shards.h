#ifndef SHERD_CORE_SHARDING_REMOTE_SHARDS_H_
#define SHERD_CORE_SHARDING_REMOTE_SHARDS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// A worker of remote access.
struct WorkerInfo {
  std::string name;
  // The worker's global rank.
  int rank = 0;

  friend bool operator==(const WorkerInfo&, const WorkerInfo&) = default;
};

struct ToHereOptions {
  // A box of the shard, whose first element has the offsets 0. Unset: all of
  // it. Nothing else is transferred.
  std::optional<Box> box = std::nullopt;
  // Receives the elements: a tensor of the box's sizes and the shard's dtype.
  // Undefined: a new tensor.
  Tensor out = {};
  // Unset: the timeout of remote access.
  std::optional<absl::Duration> timeout = std::nullopt;
};

// A shard on another worker, of a tensor that was created with
// ShardedTensorOptions::init_rrefs. A value; it keeps neither the shard nor the
// tensor: the owner withdraws the shard with the last handle of its tensor.
//
// Threads. Safe from any thread.
class RemoteShard {
 public:
  const WorkerInfo& owner() const { return owner_; }
  // Of the whole shard.
  const ShardMetadata& metadata() const { return metadata_; }

  // A copy of the shard, or of a box of it; the metadata have the box's place
  // in the tensor. Not collective: no other worker has to call anything.
  //
  // Returns the elements of that moment. The callers order this with what the
  // owner writes to the tensor, with a barrier for instance.
  //
  // Errors are those of RemoteAccess::Fetch: kInvalidArgument for a box outside
  // the shard or another `out`, kNotFound once the owner's tensor is gone,
  // kUnavailable with the owner's rank if it died or has shut down,
  // kDeadlineExceeded, kFailedPrecondition after this worker's own shutdown or
  // without `out` if no device map names the shard's device.
  absl::StatusOr<Shard> ToHere(const ToHereOptions& options = {}) const;

 private:
  friend class ShardedTensor;

  RemoteShard(const std::shared_ptr<RemoteAccess>& access, FetchRequest request,
              int owner, ShardMetadata metadata);

  // Its starter keeps it alive.
  std::weak_ptr<RemoteAccess> access_;
  // Of the whole shard.
  FetchRequest request_;
  WorkerInfo owner_;
  ShardMetadata metadata_;
};

// By the owner's global rank.
using RemoteShards = std::map<int, std::vector<RemoteShard>>;

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_REMOTE_SHARDS_H_
