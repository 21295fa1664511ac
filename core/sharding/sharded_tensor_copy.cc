#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/agreement.h"
#include "sherd/core/sharding/local_shards.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_access.h"
#include "sherd/core/sharding/sharded_tensor_state.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/element_cast.h"
#include "sherd/core/tensor/shape.h"

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

// A copy of `src` as the shard that `target` says.
absl::StatusOr<Tensor> ConvertShard(const ShardedTensorState& state,
                                    const Shard& src,
                                    const ShardMetadata& target,
                                    Allocator* allocator) {
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

// Where a shard on `placement` is once it went to `device`.
Placement OnDevice(const Placement& placement, const Device& device) {
  if (IsOn(placement, device)) return placement;
  if (const auto rank = placement.rank()) {
    return Placement::OnRank(*rank, device);
  }
  if (const auto name = placement.worker_name()) {
    return Placement::OnWorker(*name, device);
  }
  return Placement::OnDevice(device);
}

// Metadata, spec and group of the result of To.
absl::StatusOr<internal::ShardedTensorStatePtr> ConvertState(
    const ShardedTensorState& state, const ToOptions& options) {
  ShardedTensorMetadata metadata = state.metadata;
  metadata.properties.dtype = options.dtype.value_or(metadata.properties.dtype);
  SHERD_RETURN_IF_ERROR(
      NumBytes(metadata.size, metadata.properties.dtype).status());
  ShardingSpecPtr spec = state.spec;
  if (options.device) {
    if (!options.device->is_cpu()) metadata.properties.pin_memory = false;
    for (ShardMetadata& shard : metadata.shards) {
      if (!shard.placement) continue;
      shard.placement = OnDevice(*shard.placement, *options.device);
    }
    if (metadata.shards != state.metadata.shards) {
      spec = state.spec->WithPlacements([&](const Placement& placement) {
        return OnDevice(placement, *options.device);
      });
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
                               state.workers, state.view_offsets);
}

bool ChangesNothing(const ShardedTensorState& state, const ToOptions& options) {
  if (options.copy) return false;
  if (options.dtype && *options.dtype != state.metadata.properties.dtype) {
    return false;
  }
  if (options.group != nullptr && options.group != state.group) return false;
  if (!options.device) return true;
  for (const ShardMetadata& shard : state.metadata.shards) {
    if (shard.placement && !IsOn(*shard.placement, *options.device)) {
      return false;
    }
  }
  return true;
}

absl::StatusOr<ShardedTensor> ConvertHere(const ShardedTensor& tensor,
                                          const ToOptions& options) {
  const ShardedTensorState& state =
      *internal::ShardedTensorAccess::StateOf(tensor);
  if (ChangesNothing(state, options)) return tensor;
  SHERD_ASSIGN_OR_RETURN(internal::ShardedTensorStatePtr changed,
                         ConvertState(state, options));
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

}  // namespace

absl::StatusOr<ShardedTensor> ShardedTensor::To(
    const ToOptions& options) const {
  if (!defined()) return internal::NotCreated("to");
  const std::shared_ptr<ProcessGroup>& runs_on =
      group() == nullptr ? options.group : group();
  SHERD_RETURN_IF_ERROR(CheckMemberOf(runs_on, "to"));
  absl::StatusOr<ShardedTensor> result = ConvertHere(*this, options);
  Fingerprint call;
  call.Add(static_cast<int64_t>(fingerprint())).Add(options.copy ? 1 : 0);
  if (result.ok()) call.Add(static_cast<int64_t>(result->fingerprint()));
  SHERD_RETURN_IF_ERROR(
      AgreeOn(runs_on, "to", result.status(),
              {call.value(), [&] {
                 return absl::StrCat(
                     internal::DescribeForAgreement("tensor", *this), "copy ",
                     options.copy ? "true" : "false", "\n",
                     internal::DescribeForAgreement(
                         "result", result.ok() ? *result : ShardedTensor()));
               }}));
  return result;
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
  return ShardedTensor(state_, *std::move(shards));
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
    if (!internal::SameLayout(state(), src.state()) ||
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
