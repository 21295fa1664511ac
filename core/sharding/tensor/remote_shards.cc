#include "sherd/core/sharding/remote_shards.h"

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/tensor/shard_publication.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"

namespace sherd {
namespace {

absl::Status HasEnded() {
  return absl::FailedPreconditionError(
      "RPC has been shut down on this worker: shards of others cannot be read");
}

}  // namespace

RemoteShard::RemoteShard(const std::shared_ptr<RemoteAccess>& access,
                         FetchRequest request, int owner,
                         ShardMetadata metadata)
    : access_(access),
      request_(std::move(request)),
      owner_{access->workers()[static_cast<size_t>(owner)], owner},
      metadata_(std::move(metadata)) {}

absl::StatusOr<Shard> RemoteShard::ToHere(const ToHereOptions& options) const {
  const std::shared_ptr<RemoteAccess> access = access_.lock();
  if (access == nullptr) return HasEnded();
  FetchRequest request = request_;
  request.box = options.box;
  request.out = options.out;
  request.timeout = options.timeout;
  SHERD_ASSIGN_OR_RETURN(Tensor elements, access->Fetch(owner_.rank, request));
  Shard shard = {std::move(elements), metadata_};
  if (!options.box) return shard;
  for (size_t d = 0; d < options.box->sizes.size(); ++d) {
    shard.metadata.offsets[d] += options.box->offsets[d];
    shard.metadata.sizes[d] = options.box->sizes[d];
  }
  return shard;
}

absl::StatusOr<RemoteShards> ShardedTensor::remote_shards() const {
  if (!defined()) return internal::NotCreated("remote_shards");
  const internal::ShardPublication* const publication =
      state().publication.get();
  if (publication == nullptr) {
    return absl::FailedPreconditionError(
        "ShardedTensor created with init_rrefs=False: the shards of other "
        "workers can be read where it is true");
  }
  const std::shared_ptr<RemoteAccess> access = publication->access();
  if (access == nullptr) return HasEnded();
  const uint64_t fingerprint = internal::FingerprintForReaders(state());
  RemoteShards result;
  std::map<int, int> seen;
  for (size_t i = 0; i < metadata().shards.size(); ++i) {
    const int owner =
        group()->world_ranks()[static_cast<size_t>((*state().boxes)[i].rank)];
    const int position = seen[owner]++;
    if (owner == access->rank()) continue;
    result[owner].push_back(RemoteShard(access,
                                        {.publication = publication->id(),
                                         .fingerprint = fingerprint,
                                         .shard = position},
                                        owner, metadata().shards[i]));
  }
  return result;
}

}  // namespace sherd
