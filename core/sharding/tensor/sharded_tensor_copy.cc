#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/shard_publication.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/types/element_cast.h"

namespace sherd {
namespace {

using internal::LocalShards;
using internal::ShardedTensorState;

// Makes the outcome of one rank's work that of all, where there are others.
absl::Status AgreeOn(const std::shared_ptr<ProcessGroup>& group,
                     absl::string_view operation, const absl::Status& local,
                     const AgreedValue& value) {
  if (group == nullptr) return local;
  return Agree(*group, operation, local, value);
}

absl::Status CheckMemberOf(const std::shared_ptr<ProcessGroup>& group,
                           absl::string_view operation) {
  if (group == nullptr) return absl::OkStatus();
  return internal::CheckMember(*group, operation);
}

// Copies the elements of `src` into `dst`, which is contiguous and has the same
// sizes. Dtypes are converted in host memory.
absl::Status Convert(const Tensor& src, Tensor& dst) {
  if (src.dtype() == dst.dtype()) return dst.CopyFrom(src);
  SHERD_RETURN_IF_ERROR(CheckCast(src.dtype(), dst.dtype()));
  if (!src.device().is_cpu()) {
    SHERD_ASSIGN_OR_RETURN(const Tensor here, src.To(Device()));
    return Convert(here, dst);
  }
  SHERD_ASSIGN_OR_RETURN(const Tensor dense, src.Contiguous());
  if (!dst.device().is_cpu()) {
    SHERD_ASSIGN_OR_RETURN(const Tensor converted, dense.To(dst.dtype()));
    return dst.CopyFrom(converted);
  }
  CastElements(dense.dtype(), dense.data(),
               static_cast<int64_t>(dense.element_size()), dst.dtype(),
               dst.data(), dense.numel());
  return absl::OkStatus();
}

// A copy of `src` as the shard that `target` describes, on the same device
// unless `target` names another.
absl::StatusOr<Tensor> ConvertShard(const ShardedTensorState& state,
                                    const Shard& src, ShardMetadata target,
                                    Allocator* allocator) {
  if (target.placement &&
      SameDevice(target.placement->device(), src.tensor.device())) {
    target.placement = target.placement->OnSameOwner(src.tensor.device());
  }
  SHERD_ASSIGN_OR_RETURN(
      Tensor result,
      internal::AllocateShard(state.group.get(), target,
                              state.metadata.properties, allocator));
  if (result.device().is_meta()) return result;
  if (src.tensor.device().is_meta()) {
    return absl::UnimplementedError(absl::StrCat(
        "Cannot copy out of meta tensor; no data! ", src.metadata.ToString(),
        " should go to ", result.device().ToString()));
  }
  SHERD_RETURN_IF_ERROR(Convert(src.tensor, result));
  return result;
}

absl::StatusOr<LocalShards> ConvertShards(const ShardedTensorState& state,
                                          absl::Span<const Shard> shards,
                                          bool copy, Allocator* allocator) {
  std::vector<Shard> result;
  result.reserve(shards.size());
  const std::vector<ShardMetadata>& all = state.metadata.shards;
  for (size_t i = 0; i < shards.size(); ++i) {
    const ShardMetadata& target =
        all[static_cast<size_t>(state.local_indices[i])];
    const Tensor& tensor = shards[i].tensor;
    const Device device =
        target.placement ? target.placement->device() : tensor.device();
    if (!copy && tensor.dtype() == state.metadata.properties.dtype &&
        SameDevice(tensor.device(), device)) {
      result.push_back({tensor, target});
      continue;
    }
    SHERD_ASSIGN_OR_RETURN(Tensor converted,
                           ConvertShard(state, shards[i], target, allocator));
    result.push_back({std::move(converted), target});
  }
  return std::make_shared<const std::vector<Shard>>(std::move(result));
}

// Whether a shard on `placement` is surely on `device`.
bool IsOn(const Placement& placement, const Device& device) {
  const Device own = placement.device();
  return SameDevice(own, device) &&
         (device.index < 0 || own.index >= 0 || own.is_cpu() || own.is_meta());
}

// The index of the device that one rank's shards move to, as ranks exchange it.
struct DeviceChoice {
  // As requested by the caller; -1: shards on devices of that type stay.
  int32_t asked = -1;
  // Of all others; -1: not set.
  int32_t own = -1;

  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};

// This rank's choice. An invalid device is detected where memory is needed.
DeviceChoice ChooseDevice(const ProcessGroup* group, const ToOptions& options) {
  const Device device = options.device.value_or(Device());
  if (device.is_cpu() || device.is_meta()) return {};
  if (device.index >= 0) return {device.index, device.index};
  const Device memory =
      options.allocator == nullptr ? Device() : options.allocator->device();
  if (memory.type == device.type && memory.index >= 0) {
    return {.own = memory.index};
  }
  if (group != nullptr) {
    const Device own = internal::ResolveDevice(*group, group->rank(), device);
    if (own.index >= 0) return {.own = own.index};
  }
  const absl::StatusOr<Device> current = DeviceRuntime::Resolve(device);
  return {.own = current.ok() ? current->index : -1};
}

// Where the shards of a tensor go: by the choices of the ranks of `group`, or,
// if it is null, by that of this process, which is the only one.
class Destinations {
 public:
  Destinations(const ProcessGroup* group,
               std::shared_ptr<const RemoteAccess> workers, DeviceType type,
               std::vector<DeviceChoice> choices)
      : type_(type),
        choices_(std::move(choices)),
        workers_(std::move(workers)) {
    if (group != nullptr)
      resolver_.emplace(internal::ResolverFor(*group, workers_.get()));
  }

  Placement Of(const Placement& placement) const {
    const int rank = resolver_ ? resolver_->Resolve(placement).value_or(-1) : 0;
    if (rank < 0) return placement.OnSameOwner(type_);
    const DeviceChoice& choice = choices_[static_cast<size_t>(rank)];
    if (IsOn(placement, {type_, choice.asked})) return placement;
    return placement.OnSameOwner({type_, choice.own});
  }

 private:
  const DeviceType type_;
  const std::vector<DeviceChoice> choices_;
  // Has the names that the resolver refers to.
  const std::shared_ptr<const RemoteAccess> workers_;
  std::optional<RankResolver> resolver_;
};

// Metadata, spec and group of the result of To.
absl::StatusOr<internal::ShardedTensorStatePtr> ConvertState(
    const ShardedTensorState& state, const ToOptions& options,
    const Destinations& destinations) {
  ShardedTensorMetadata metadata = state.metadata;
  metadata.properties.dtype = options.dtype.value_or(metadata.properties.dtype);
  SHERD_RETURN_IF_ERROR(
      NumBytes(metadata.size, metadata.properties.dtype).status());
  ShardingSpecPtr spec = state.spec;
  if (options.device) {
    if (!options.device->is_cpu()) metadata.properties.pin_memory = false;
    const auto replace = [&](const Placement& placement) {
      return destinations.Of(placement);
    };
    for (ShardMetadata& shard : metadata.shards) {
      if (shard.placement) shard.placement = replace(*shard.placement);
    }
    if (metadata.shards != state.metadata.shards) {
      spec = state.spec->WithPlacements(replace);
      if (spec == nullptr) {
        SHERD_ASSIGN_OR_RETURN(
            spec, InferShardingSpec(metadata.shards, Replicas::kAllowed));
      }
    }
  }
  if (state.group == nullptr && options.group == nullptr) {
    return internal::MakeStateWithoutGroup(std::move(spec), std::move(metadata),
                                           state.local_indices);
  }
  const bool same_group =
      options.group == nullptr || options.group == state.group;
  return internal::MakeStateOf(same_group ? state.group : options.group,
                               std::move(spec), std::move(metadata),
                               same_group ? state.boxes : nullptr,
                               state.workers.lock(), state.view_offsets);
}

// The result of To for this rank, which depends only on its own shards.
absl::StatusOr<ShardedTensor> ConvertHere(const ShardedTensor& tensor,
                                          const ToOptions& options,
                                          const Destinations& destinations) {
  if (options.device) SHERD_RETURN_IF_ERROR(options.device->status());
  const ShardedTensorState& state =
      *internal::ShardedTensorAccess::StateOf(tensor);
  SHERD_ASSIGN_OR_RETURN(internal::ShardedTensorStatePtr changed,
                         ConvertState(state, options, destinations));
  if (!options.copy && changed->group == state.group &&
      changed->metadata == state.metadata) {
    return tensor;
  }
  if (changed->local_indices != state.local_indices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this process has ", state.local_indices.size(),
        " shards, but as rank ", changed->group->rank(), " of group '",
        changed->group->name(), "' it owns ", changed->local_indices.size(),
        " others: reshard instead"));
  }
  SHERD_ASSIGN_OR_RETURN(LocalShards shards,
                         ConvertShards(*changed, tensor.local_shards(),
                                       options.copy, options.allocator));
  return internal::ShardedTensorAccess::Make(std::move(changed),
                                             std::move(shards));
}

// The arguments that all ranks pass alike; each has a device of its own.
uint64_t FingerprintOfCall(const ShardedTensor& tensor,
                           const ToOptions& options) {
  const bool other_group =
      options.group != nullptr && options.group != tensor.group();
  return Fingerprint()
      .Add(static_cast<int64_t>(tensor.fingerprint()))
      .Add(static_cast<int64_t>(options.dtype.value_or(tensor.dtype())))
      .Add(options.device ? static_cast<int64_t>(options.device->type) : -1)
      .Add(other_group ? options.group->name() : "")
      .Add(options.copy ? 1 : 0)
      .value();
}

std::string DescribeCall(const ShardedTensor& tensor,
                         const ToOptions& options) {
  const bool other_group =
      options.group != nullptr && options.group != tensor.group();
  return absl::StrCat(
      internal::DescribeForAgreement("tensor", tensor), "to the dtype ",
      Name(options.dtype.value_or(tensor.dtype())), "\nto ",
      options.device ? Name(options.device->type) : "no other device",
      "\nto the group '", other_group ? options.group->name() : "of the tensor",
      "'\ncopy ", options.copy ? "true" : "false", "\n");
}

}  // namespace

absl::StatusOr<ShardedTensor> ShardedTensor::To(
    const ToOptions& options) const {
  if (!defined()) return internal::NotCreated("to");
  const std::shared_ptr<ProcessGroup>& runs_on =
      group() == nullptr ? options.group : group();
  SHERD_RETURN_IF_ERROR(CheckMemberOf(runs_on, "to"));
  const DeviceChoice own = ChooseDevice(
      options.group == nullptr ? group().get() : options.group.get(), options);
  const auto destinations = [&](std::vector<DeviceChoice> choices) {
    return Destinations(runs_on.get(), state().workers.lock(),
                        options.device.value_or(Device()).type,
                        std::move(choices));
  };
  const size_t ranks =
      runs_on == nullptr ? 1 : static_cast<size_t>(runs_on->size());
  // As if all ranks had chosen alike.
  const std::vector<DeviceChoice> alike(ranks, own);
  absl::StatusOr<ShardedTensor> result =
      ConvertHere(*this, options, destinations(alike));
  if (runs_on == nullptr) return result;
  SHERD_ASSIGN_OR_RETURN(
      std::vector<DeviceChoice> choices,
      AgreeAndGather(*runs_on, "to", result.status(),
                     {FingerprintOfCall(*this, options),
                      [&] { return DescribeCall(*this, options); }},
                     own));
  if (choices == alike)
    return internal::PublishAs("to", *this, *std::move(result));
  SHERD_ASSIGN_OR_RETURN(
      std::shared_ptr<const State> state,
      ConvertState(this->state(), options, destinations(std::move(choices))));
  LocalShards shards = internal::Relabel(*state, result->local_shards_);
  return internal::PublishAs(
      "to", *this, ShardedTensor(std::move(state), std::move(shards)));
}

absl::StatusOr<ShardedTensor> ShardedTensor::Clone(Allocator* allocator) const {
  if (!defined()) return internal::NotCreated("clone");
  SHERD_RETURN_IF_ERROR(CheckMemberOf(group(), "clone"));
  absl::StatusOr<LocalShards> shards =
      ConvertShards(state(), local_shards(), /*copy=*/true, allocator);
  SHERD_RETURN_IF_ERROR(AgreeOn(group(), "clone", shards.status(),
                                {fingerprint(), [this] {
                                   return internal::DescribeForAgreement(
                                       "tensor", *this);
                                 }}));
  return internal::PublishAs(
      "clone", *this,
      ShardedTensor(state_->publication == nullptr
                        ? state_
                        : internal::WithPublication(*state_, nullptr),
                    *std::move(shards)));
}

absl::Status ShardedTensor::CopyFrom(const ShardedTensor& src) {
  if (!defined()) return internal::NotCreated("copy");
  SHERD_RETURN_IF_ERROR(CheckMemberOf(group(), "copy"));
  std::vector<Shard> copies;
  absl::Span<const Shard> from;
  const auto prepare = [&]() -> absl::Status {
    if (!src.defined()) return internal::NotCreated("the source");
    if (src.group() != group()) {
      return absl::InvalidArgumentError(
          "source and destination are spread over different groups");
    }
    if (!internal::SameLayout(metadata(), src.metadata()) ||
        state().local_indices != src.state().local_indices) {
      return absl::FailedPreconditionError(absl::StrCat(
          "inplace copy can only happen between two ShardedTensor with same "
          "metadata! The source has size ",
          FormatDims(src.size()), " and is laid out by ",
          src.spec()->ToString(), ", the destination has size ",
          FormatDims(size()), " and is laid out by ", spec()->ToString(),
          "; ReshardInto copies into any layout"));
    }
    if (src.dtype() != dtype()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the source is of dtype ", Name(src.dtype()),
                       ", but should be of ", Name(dtype()), "; see To"));
    }
    SHERD_RETURN_IF_ERROR(internal::CheckHasData(src.local_shards()));
    SHERD_RETURN_IF_ERROR(internal::CheckHasData(local_shards()));
    SHERD_RETURN_IF_ERROR(internal::CheckDestinations(local_shards()));
    SHERD_ASSIGN_OR_RETURN(
        from, internal::ApartFrom(local_shards(), src.local_shards(), copies));
    return absl::OkStatus();
  };
  const absl::Status local = prepare();
  Fingerprint call;
  call.Add(static_cast<int64_t>(fingerprint()));
  if (local.ok()) call.Add(static_cast<int64_t>(src.fingerprint()));
  SHERD_RETURN_IF_ERROR(
      AgreeOn(group(), "copy", local,
              {call.value(), [&] {
                 return absl::StrCat(
                     internal::DescribeForAgreement("destination", *this),
                     internal::DescribeForAgreement("source", src));
               }}));
  for (size_t i = 0; i < local_shards().size(); ++i) {
    Tensor tensor = local_shards()[i].tensor;
    SHERD_RETURN_IF_ERROR(tensor.CopyFrom(from[i].tensor));
  }
  return absl::OkStatus();
}

}  // namespace sherd
