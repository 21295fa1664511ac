#ifndef SHERD_CORE_SHARDING_TENSOR_SHARDED_TENSOR_STATE_H_
#define SHERD_CORE_SHARDING_TENSOR_SHARDED_TENSOR_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/types/tensor_properties.h"

namespace sherd::internal {

class ShardPublication;

// The immutable state that all handles of a ShardedTensor share.
struct ShardedTensorState {
  // Null: all shards are here.
  std::shared_ptr<ProcessGroup> group;
  // For placements by worker name. Its starter keeps it alive.
  std::weak_ptr<RemoteAccess> workers;
  // Null for a tensor that was created without init_rrefs.
  std::shared_ptr<const ShardPublication> publication;
  ShardingSpecPtr spec;
  ShardedTensorMetadata metadata;
  // By rank in the group, as many as shards. Null without a group.
  std::shared_ptr<const std::vector<PlacedBox>> boxes;
  // Positions of this rank's shards in metadata.shards.
  std::vector<int> local_indices;
  // Of size and shards: the same on all ranks.
  uint64_t layout_fingerprint = 0;
  // The offsets of a view in the tensor that it was cut from; empty for a
  // tensor that is not a view.
  Dims view_offsets;
  // The state of the generator that drew the elements of a tensor with
  // replicas; it must be the same on all their ranks.
  std::optional<Generator::State> drawn;
  // Of all of the above but the group.
  uint64_t fingerprint = 0;
};
using ShardedTensorStatePtr = std::shared_ptr<const ShardedTensorState>;

// Returns a resolver for the owners of placements in `group`. It refers to
// `group` and `workers`; null: no worker names.
RankResolver ResolverFor(const ProcessGroup& group,
                         const RemoteAccess* workers);

// `device` of the rank `rank` of `group`: without an index, and of the type of
// the group's devices, it is the one that the rank has in the group.
Device ResolveDevice(const ProcessGroup& group, int rank, const Device& device);

// The state of a tensor that `spec` lays out.
//   Errors. As ShardedTensor::Empty for spec, size, properties and placements.
absl::StatusOr<ShardedTensorStatePtr> MakeState(
    std::shared_ptr<ProcessGroup> group, const ShardingSpecPtr& spec,
    absl::Span<const int64_t> size, const TensorProperties& properties,
    std::shared_ptr<RemoteAccess> workers = nullptr);

// The state of a tensor whose metadata is known to be right, `spec` being a
// rule that builds it. `boxes` are its owners, or null to have them looked up.
// Placements get their index where ResolveDevice knows it, in the spec, too.
// `view_offsets`: see above.
absl::StatusOr<ShardedTensorStatePtr> MakeStateOf(
    std::shared_ptr<ProcessGroup> group, ShardingSpecPtr spec,
    ShardedTensorMetadata metadata,
    std::shared_ptr<const std::vector<PlacedBox>> boxes = nullptr,
    std::shared_ptr<RemoteAccess> workers = nullptr, Dims view_offsets = {});

// As MakeStateOf, without a group; `local_indices` are the shards that are
// here.
ShardedTensorStatePtr MakeStateWithoutGroup(ShardingSpecPtr spec,
                                            ShardedTensorMetadata metadata,
                                            std::vector<int> local_indices);

// The same layout with other properties. Cost: a copy of the metadata.
ShardedTensorStatePtr WithProperties(const ShardedTensorState& state,
                                     const TensorProperties& properties);

// The same layout and properties with elements drawn from that state. Cost: as
// WithProperties.
ShardedTensorStatePtr WithDrawn(const ShardedTensorState& state,
                                const std::optional<Generator::State>& drawn);

// The same, published or, with null, not. Cost: as WithProperties.
ShardedTensorStatePtr WithPublication(
    const ShardedTensorState& state,
    std::shared_ptr<const ShardPublication> publication);

// Whether size, boxes and places are the same, in the same order; devices are
// compared as far as indices are given: the tensors of this rank have the
// actual device.
bool SameLayout(const ShardedTensorMetadata& a, const ShardedTensorMetadata& b);

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_TENSOR_SHARDED_TENSOR_STATE_H_
