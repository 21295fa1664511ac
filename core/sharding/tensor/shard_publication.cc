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
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"

namespace sherd {
namespace internal {
namespace {

absl::Status NotRunning() {
  return absl::FailedPreconditionError(
      "RPC Framework needs to be initialized: call InitRpc before a tensor is "
      "created or moved with init_rrefs");
}

absl::Status CheckAccess(const ProcessGroup& group,
                         const std::shared_ptr<RemoteAccess>& access) {
  if (access == nullptr || !access->is_running()) return NotRunning();
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

// Waits for work queued for shards on devices.
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

// The common part of PublishShards and PublishAs: the callers count the
// tensors of a scope.
absl::StatusOr<ShardedTensor> Publish(
    const OperationLabel& operation, absl::StatusOr<ShardedTensor> created,
    ProcessGroup& group, std::string scope,
    const std::shared_ptr<RemoteAccess>& access,
    const CollectiveOptions& options) {
  std::shared_ptr<ShardPublication> publication;
  if (access != nullptr) {
    const uint64_t number = access->TakeNumber(scope);
    publication = std::make_shared<ShardPublication>(
        access, PublicationId{std::move(scope), number});
  }
  absl::Status status = created.status();
  if (status.ok()) status = CheckAccess(group, access);
  if (group.is_member()) {
    // Before the ranks agree, only a reader of a tensor whose creation failed
    // knows the number; it is refused by the fingerprint.
    if (status.ok()) status = publication->Publish(*created);
    const uint64_t own = publication == nullptr ? 0 : publication->id().number;
    SHERD_ASSIGN_OR_RETURN(
        const std::vector<uint64_t> numbers,
        AgreeAndGather(
            group, operation, status,
            {created.ok() ? created->fingerprint() : 0,
             [&] { return DescribeForAgreement("tensor", *created); }},
            own, options));
    const auto [least, most] =
        std::minmax_element(numbers.begin(), numbers.end());
    if (*least != *most) {
      // A rank that had no RPC has not counted tensors that failed.
      SHERD_RETURN_IF_ERROR(Agree(group, operation,
                                  publication->Renumber(*most, *created), {},
                                  options));
    }
  }
  SHERD_RETURN_IF_ERROR(status);
  return ShardedTensorAccess::Make(
      WithPublication(*ShardedTensorAccess::StateOf(*created),
                      std::move(publication)),
      ShardedTensorAccess::ShardsOf(*created));
}

}  // namespace

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

ShardPublication::~ShardPublication() {
  const std::shared_ptr<RemoteAccess> access = this->access();
  if (!is_published_ || access == nullptr || !access->is_running()) return;
  const absl::Status status = access->Withdraw(id_);
  if (status.ok() || !access->is_running()) return;
  SHERD_LOG(kWarning) << "withdrawing the shards of " << id_.ToString() << ": "
                      << status.ToString();
}

absl::Status ShardPublication::Publish(const ShardedTensor& tensor) {
  const std::shared_ptr<RemoteAccess> access = this->access();
  if (access == nullptr) return NotRunning();
  SHERD_RETURN_IF_ERROR(Complete(tensor.local_shards()));
  std::vector<Tensor> shards;
  for (const Shard& shard : tensor.local_shards()) {
    shards.push_back(shard.tensor);
  }
  SHERD_RETURN_IF_ERROR(access->Publish(
      {id_, FingerprintForReaders(*ShardedTensorAccess::StateOf(tensor)),
       std::move(shards)}));
  is_published_ = true;
  return absl::OkStatus();
}

absl::Status ShardPublication::Renumber(uint64_t number,
                                        const ShardedTensor& tensor) {
  const std::shared_ptr<RemoteAccess> access = this->access();
  if (access == nullptr) return NotRunning();
  access->SkipNumbers(id_.scope, number);
  if (id_.number == number) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(access->Withdraw(id_));
  is_published_ = false;
  id_.number = number;
  return Publish(tensor);
}

absl::StatusOr<ShardedTensor> PublishShards(
    absl::StatusOr<ShardedTensor> created,
    const std::shared_ptr<ProcessGroup>& group,
    const std::shared_ptr<RemoteAccess>& access) {
  return Publish("init_rrefs", std::move(created), *group, group->name(),
                 access, {});
}

absl::StatusOr<ShardedTensor> PublishAs(absl::string_view operation,
                                        const ShardedTensor& source,
                                        ShardedTensor result,
                                        const CollectiveOptions& options) {
  const ShardedTensorState& state = *ShardedTensorAccess::StateOf(source);
  if (state.publication == nullptr ||
      ShardedTensorAccess::StateOf(result)->publication == state.publication) {
    return result;
  }
  std::shared_ptr<RemoteAccess> access = state.publication->access();
  if (access == nullptr || !access->is_running())
    access = DefaultRemoteAccess();
  // Workers outside the group count its creations, but cannot count its moves.
  return Publish(operation, std::move(result), *state.group,
                 absl::StrCat(state.group->name(), " moved"), access, options);
}

}  // namespace internal

absl::StatusOr<ShardedTensor> ShardedTensor::Publish(
    absl::StatusOr<ShardedTensor> created,
    const ShardedTensorOptions& options) {
  if (!options.init_rrefs) return created;
  SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                         internal::GroupOrDefault(options.group));
  return internal::PublishShards(std::move(created), group,
                                 internal::WorkersOrDefault(options));
}

}  // namespace sherd
