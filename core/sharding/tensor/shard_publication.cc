#include "sherd/core/sharding/tensor/shard_publication.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/remote_shards.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"

namespace sherd {
namespace internal {
namespace {

constexpr char kOperation[] = "init_rrefs";

// Of what a reader has to know: the same on workers outside the group, which do
// not know the indices of its devices.
uint64_t FingerprintForReaders(const ShardedTensorState& state) {
  Fingerprint fingerprint;
  const auto add = [&](const Dims& dims) {
    fingerprint.Add(static_cast<int64_t>(dims.size()));
    for (const int64_t x : dims) fingerprint.Add(x);
  };
  fingerprint.Add(static_cast<int64_t>(state.metadata.properties.dtype));
  add(state.metadata.size);
  for (size_t i = 0; i < state.boxes->size(); ++i) {
    fingerprint.Add((*state.boxes)[i].rank);
    add(state.metadata.shards[i].offsets);
    add(state.metadata.shards[i].sizes);
  }
  return fingerprint.value();
}

absl::Status CheckAccess(const ProcessGroup& group,
                         const std::shared_ptr<RemoteAccess>& access) {
  if (access == nullptr || !access->is_running()) {
    return absl::FailedPreconditionError(
        "RPC Framework needs to be initialized: call InitRpc before a tensor "
        "is created with init_rrefs");
  }
  const auto differ = [&](absl::string_view whose, int rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Default ProcessGroup and RPC ranks must be the same, found rank ",
        rank, " in ", whose, " and ", access->rank(), " of ",
        access->workers().size(), " in RPC"));
  };
  const auto default_group = DefaultGroup();
  if (default_group.ok() && (*default_group)->is_member() &&
      (*default_group)->rank() != access->rank()) {
    return differ("the default group", (*default_group)->rank());
  }
  const absl::Span<const int> ranks = group.world_ranks();
  if (group.is_member() && ranks[group.rank()] != access->rank()) {
    return differ("the job", ranks[group.rank()]);
  }
  const int highest = *std::max_element(ranks.begin(), ranks.end());
  if (static_cast<size_t>(highest) >= access->workers().size()) {
    return differ(absl::StrCat("group '", group.name(), "'"), highest);
  }
  return absl::OkStatus();
}

// Waits for what is queued for the shards on devices.
absl::Status Complete(absl::Span<const Shard> shards) {
  for (const Shard& shard : shards) {
    const Device device = shard.tensor.device();
    if (device.is_cpu() || device.is_meta()) continue;
    SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                           DeviceRuntime::For(device.type));
    SHERD_RETURN_IF_ERROR(runtime->Synchronize(CurrentStream(device)));
  }
  return absl::OkStatus();
}

}  // namespace

ShardPublication::~ShardPublication() {
  if (!is_published_ || !access_->is_running()) return;
  const absl::Status status = access_->Withdraw(id_);
  if (status.ok() || !access_->is_running()) return;
  SHERD_LOG(kWarning) << "withdrawing the shards of " << id_.ToString() << ": "
                      << status.ToString();
}

absl::Status ShardPublication::Publish(const ShardedTensor& tensor) {
  SHERD_RETURN_IF_ERROR(Complete(tensor.local_shards()));
  std::vector<Tensor> shards;
  for (const Shard& shard : tensor.local_shards()) {
    shards.push_back(shard.tensor);
  }
  SHERD_RETURN_IF_ERROR(access_->Publish(
      {id_, FingerprintForReaders(*ShardedTensorAccess::StateOf(tensor)),
       std::move(shards)}));
  is_published_ = true;
  return absl::OkStatus();
}

absl::Status ShardPublication::Renumber(uint64_t number,
                                        const ShardedTensor& tensor) {
  access_->SkipNumbers(id_.scope, number);
  if (id_.number == number) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(access_->Withdraw(id_));
  is_published_ = false;
  id_.number = number;
  return Publish(tensor);
}

absl::StatusOr<ShardedTensor> PublishShards(
    absl::StatusOr<ShardedTensor> created,
    const std::shared_ptr<ProcessGroup>& group,
    std::shared_ptr<RemoteAccess> access) {
  std::shared_ptr<ShardPublication> publication;
  if (access != nullptr) {
    const uint64_t number = access->TakeNumber(group->name());
    publication = std::make_shared<ShardPublication>(
        access, PublicationId{group->name(), number});
  }
  absl::Status status = created.status();
  if (status.ok()) status = CheckAccess(*group, access);
  if (group->is_member()) {
    if (status.ok()) status = publication->Publish(*created);
    const uint64_t own = publication == nullptr ? 0 : publication->id().number;
    SHERD_ASSIGN_OR_RETURN(
        const std::vector<uint64_t> numbers,
        AgreeAndGather(
            *group, kOperation, status,
            {created.ok() ? created->fingerprint() : 0,
             [&] { return DescribeForAgreement("tensor", *created); }},
            own));
    const auto [least, most] =
        std::minmax_element(numbers.begin(), numbers.end());
    if (*least != *most) {
      SHERD_RETURN_IF_ERROR(
          Agree(*group, kOperation, publication->Renumber(*most, *created)));
    }
  }
  SHERD_RETURN_IF_ERROR(status);
  return ShardedTensorAccess::Make(
      WithPublication(*ShardedTensorAccess::StateOf(*created),
                      std::move(publication)),
      ShardedTensorAccess::ShardsOf(*created));
}

absl::StatusOr<ShardedTensor> PublishAs(const ShardedTensor& source,
                                        ShardedTensor result) {
  const ShardedTensorStatePtr& state = ShardedTensorAccess::StateOf(source);
  if (state->publication == nullptr ||
      (ShardedTensorAccess::StateOf(result) == state &&
       ShardedTensorAccess::ShardsOf(result) ==
           ShardedTensorAccess::ShardsOf(source))) {
    return result;
  }
  const std::shared_ptr<ProcessGroup> group = result.group();
  return PublishShards(std::move(result), group, state->publication->access());
}

}  // namespace internal

RemoteShard::RemoteShard(std::shared_ptr<RemoteAccess> access,
                         FetchRequest request, int owner,
                         ShardMetadata metadata)
    : access_(std::move(access)),
      request_(std::move(request)),
      owner_{access_->workers()[static_cast<size_t>(owner)], owner},
      metadata_(std::move(metadata)) {}

absl::StatusOr<Shard> RemoteShard::ToHere(const ToHereOptions& options) const {
  FetchRequest request = request_;
  request.box = options.box;
  request.out = options.out;
  request.timeout = options.timeout;
  SHERD_ASSIGN_OR_RETURN(Tensor elements, access_->Fetch(owner_.rank, request));
  Shard shard = {std::move(elements), metadata_};
  if (!options.box) return shard;
  for (size_t d = 0; d < options.box->sizes.size(); ++d) {
    shard.metadata.offsets[d] += options.box->offsets[d];
    shard.metadata.sizes[d] = options.box->sizes[d];
  }
  return shard;
}

absl::StatusOr<ShardedTensor> ShardedTensor::Publish(
    absl::StatusOr<ShardedTensor> created,
    const ShardedTensorOptions& options) {
  if (!options.init_rrefs) return created;
  SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                         internal::GroupOrDefault(options.group));
  return internal::PublishShards(std::move(created), group,
                                 internal::WorkersOrDefault(options));
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
  const std::shared_ptr<RemoteAccess>& access = publication->access();
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
