#ifndef SHERD_SERIALIZATION_KITS_SAMPLE_METADATA_H_
#define SHERD_SERIALIZATION_KITS_SAMPLE_METADATA_H_

#include <vector>

#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"

namespace sherd {

// Metadata with everything that it may have: uneven boxes, a replica, an empty
// box past the end, ranks, workers, a device alone and no placement at all.
inline ShardedTensorMetadata SampleMetadata() {
  ShardedTensorMetadata metadata = {
      .shards = {{{0, 0}, {2, 3}, Placement("rank:7/cpu")},
                 {{2, 0}, {1, 3}, Placement("rank:0/cuda:3")},
                 {{2, 0}, {1, 3}, Placement("trainer_17/cuda:3")},
                 {{3, 0}, {1, 300}, Placement("meta")},
                 {{0, 3}, {3, 297}, {}},
                 {{9, 0}, {0, 300}, Placement("rank:7/cpu")}},
      .size = {4, 300}};
  metadata.properties.dtype = kBFloat16;
  metadata.properties.layout = Layout::kSparseCsr;
  metadata.properties.requires_grad = true;
  metadata.properties.memory_format = MemoryFormat::kPreserve;
  metadata.properties.pin_memory = true;
  return metadata;
}

// Chunks, boxes, and meshes with and without negative dimensions.
inline std::vector<ShardingSpecPtr> SampleSpecs() {
  const DeviceMesh mesh = {
      .shape = {2, 1, 2},
      .placements = {"rank:3/cpu", "rank:1/cuda:1", "worker/cpu", "rank:2"}};
  return {
      ChunkShardingSpec::Create(-1, {"rank:1/cpu", "rank:0/cuda:5", "rank:1"})
          .value(),
      EnumerableShardingSpec::CreateWithReplicas(SampleMetadata().shards)
          .value(),
      MeshShardingSpec::Create(mesh, {{2, 0}, {}, {1}}).value(),
      MeshShardingSpec::FromPlacements(
          mesh, {MeshPlacement::Shard(1), MeshPlacement::Replicate(),
                 MeshPlacement::Shard(-1)})
          .value(),
      MeshShardingSpec::Create({.shape = {}, .placements = {"cpu"}}, {})
          .value()};
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_SAMPLE_METADATA_H_
