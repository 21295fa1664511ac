#include "sherd/core/sharding/tensor/sharded_tensor_state.h"

#include <algorithm>
#include <cstddef>
#include <typeinfo>
#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/validated_metadata.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::internal {
namespace {

void AddDims(Fingerprint& fingerprint, const Dims& dims) {
  fingerprint.Add(static_cast<int64_t>(dims.size()));
  for (const int64_t x : dims) fingerprint.Add(x);
}

uint64_t FingerprintOfLayout(const ShardedTensorMetadata& metadata) {
  Fingerprint fingerprint;
  AddDims(fingerprint, metadata.size);
  fingerprint.Add(static_cast<int64_t>(metadata.shards.size()));
  for (const ShardMetadata& shard : metadata.shards) {
    AddDims(fingerprint, shard.offsets);
    AddDims(fingerprint, shard.sizes);
    if (!shard.placement) continue;
    const Placement& placement = *shard.placement;
    fingerprint.Add(placement.rank().value_or(-1));
    if (const auto name = placement.worker_name()) fingerprint.Add(*name);
    fingerprint.Add(static_cast<int64_t>(placement.device().type));
    fingerprint.Add(placement.device().index);
  }
  return fingerprint.value();
}

uint64_t FingerprintOf(const ShardedTensorState& state) {
  const TensorProperties& properties = state.metadata.properties;
  Fingerprint fingerprint;
  AddDims(fingerprint, state.view_offsets);
  if (state.drawn) {
    fingerprint.Add(static_cast<int64_t>(state.drawn->seed))
        .Add(static_cast<int64_t>(state.drawn->position));
  }
  return fingerprint.Add(static_cast<int64_t>(state.layout_fingerprint))
      .Add(static_cast<int64_t>(properties.dtype))
      .Add(properties.requires_grad ? 1 : 0)
      .Add(properties.pin_memory ? 1 : 0)
      .value();
}

std::shared_ptr<ShardedTensorState> StateOf(ShardingSpecPtr spec,
                                            ShardedTensorMetadata metadata,
                                            Dims view_offsets = {}) {
  auto state = std::make_shared<ShardedTensorState>();
  state->spec = std::move(spec);
  state->metadata = std::move(metadata);
  state->layout_fingerprint = FingerprintOfLayout(state->metadata);
  state->view_offsets = std::move(view_offsets);
  state->fingerprint = FingerprintOf(*state);
  return state;
}

bool LacksIndex(const ShardMetadata& shard) {
  if (!shard.placement) return false;
  const Device device = shard.placement->device();
  return device.index < 0 && !device.is_cpu() && !device.is_meta();
}

// Gives placements in `metadata` and `spec` their index, as far as it is known.
void ResolvePlacements(const ProcessGroup& group, const RemoteAccess* workers,
                       absl::Span<const PlacedBox> boxes,
                       ShardedTensorMetadata& metadata, ShardingSpecPtr& spec) {
  std::vector<ShardMetadata>& shards = metadata.shards;
  if (group.devices().empty() ||
      std::none_of(shards.begin(), shards.end(), LacksIndex)) {
    return;
  }
  const auto resolve = [&](const Placement& placement, int rank) {
    return placement.OnSameOwner(
        ResolveDevice(group, rank, placement.device()));
  };
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!shards[i].placement) continue;
    shards[i].placement = resolve(*shards[i].placement, boxes[i].rank);
  }
  const RankResolver resolver = ResolverFor(group, workers);
  const ShardingSpecPtr resolved =
      spec->WithPlacements([&](const Placement& placement) {
        return resolve(placement, resolver.Resolve(placement).value_or(-1));
      });
  // A class that does not answer for itself stays what it is.
  if (resolved == nullptr) return;
  const ShardingSpec& given = *spec;
  const ShardingSpec& answer = *resolved;
  if (typeid(given) == typeid(answer)) spec = resolved;
}

}  // namespace

Device ResolveDevice(const ProcessGroup& group, int rank,
                     const Device& device) {
  if (device.index >= 0 || rank < 0) return device;
  const size_t r = static_cast<size_t>(rank);
  if (r >= group.devices().size()) return device;
  const Device& own = group.devices()[r];
  return own.type == device.type ? own : device;
}

RankResolver ResolverFor(const ProcessGroup& group,
                         const RemoteAccess* workers) {
  return RankResolver(
      group.world_ranks(),
      {.is_member = group.is_member(),
       .workers = workers == nullptr ? nullptr : &workers->workers()});
}

absl::StatusOr<ShardedTensorStatePtr> MakeState(
    std::shared_ptr<ProcessGroup> group, const ShardingSpecPtr& spec,
    absl::Span<const int64_t> size, const TensorProperties& properties,
    std::shared_ptr<RemoteAccess> workers) {
  SHERD_ASSIGN_OR_RETURN(ShardedTensorMetadata metadata,
                         BuildValidatedMetadata(spec, size, properties));
  SHERD_RETURN_IF_ERROR(NumBytes(size, properties.dtype).status());
  SHERD_RETURN_IF_ERROR(CheckShardedProperties(properties));
  return MakeStateOf(std::move(group), spec, std::move(metadata), nullptr,
                     std::move(workers));
}

absl::StatusOr<ShardedTensorStatePtr> MakeStateOf(
    std::shared_ptr<ProcessGroup> group, ShardingSpecPtr spec,
    ShardedTensorMetadata metadata,
    std::shared_ptr<const std::vector<PlacedBox>> boxes,
    std::shared_ptr<RemoteAccess> workers, Dims view_offsets) {
  if (boxes == nullptr) {
    const RankResolver resolver = ResolverFor(*group, workers.get());
    SHERD_ASSIGN_OR_RETURN(std::vector<PlacedBox> placed,
                           PlacedBoxes(metadata.shards, resolver));
    boxes = std::make_shared<const std::vector<PlacedBox>>(std::move(placed));
  }
  ResolvePlacements(*group, workers.get(), *boxes, metadata, spec);
  std::shared_ptr<ShardedTensorState> state =
      StateOf(std::move(spec), std::move(metadata), std::move(view_offsets));
  const std::vector<ShardMetadata>& shards = state->metadata.shards;
  for (size_t i = 0; i < boxes->size(); ++i) {
    if (shards[i].placement && state->metadata.properties.pin_memory) {
      SHERD_RETURN_IF_ERROR(CheckPinnable(state->metadata.properties,
                                          shards[i].placement->device()));
    }
    if (!group->is_member() || (*boxes)[i].rank != group->rank()) continue;
    state->local_indices.push_back(static_cast<int>(i));
  }
  state->boxes = std::move(boxes);
  state->group = std::move(group);
  state->workers = std::move(workers);
  return state;
}

ShardedTensorStatePtr MakeStateWithoutGroup(ShardingSpecPtr spec,
                                            ShardedTensorMetadata metadata,
                                            std::vector<int> local_indices) {
  std::shared_ptr<ShardedTensorState> state =
      StateOf(std::move(spec), std::move(metadata));
  state->local_indices = std::move(local_indices);
  return state;
}

ShardedTensorStatePtr WithProperties(const ShardedTensorState& state,
                                     const TensorProperties& properties) {
  auto changed = std::make_shared<ShardedTensorState>(state);
  changed->metadata.properties = properties;
  changed->fingerprint = FingerprintOf(*changed);
  return changed;
}

ShardedTensorStatePtr WithDrawn(const ShardedTensorState& state,
                                const std::optional<Generator::State>& drawn) {
  auto changed = std::make_shared<ShardedTensorState>(state);
  changed->drawn = drawn;
  changed->fingerprint = FingerprintOf(*changed);
  return changed;
}

ShardedTensorStatePtr WithPublication(
    const ShardedTensorState& state,
    std::shared_ptr<const ShardPublication> publication) {
  auto changed = std::make_shared<ShardedTensorState>(state);
  changed->publication = std::move(publication);
  return changed;
}

bool SameLayout(const ShardedTensorMetadata& a,
                const ShardedTensorMetadata& b) {
  return &a == &b || (a.size == b.size &&
                      std::equal(a.shards.begin(), a.shards.end(),
                                 b.shards.begin(), b.shards.end(), SameShard));
}

}  // namespace sherd::internal
