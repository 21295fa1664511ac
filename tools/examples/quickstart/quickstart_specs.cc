#include "sherd/tools/examples/quickstart/quickstart_specs.h"

#include <utility>
#include <vector>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"

namespace sherd {

absl::StatusOr<ShardingSpecPtr> SpecFor(const PlannedLayout& layout,
                                        int ranks) {
  if (layout.chunk_dim) {
    SHERD_ASSIGN_OR_RETURN(
        ShardingSpecPtr spec,
        ChunkShardingSpec::Create(*layout.chunk_dim, PlacementsOnRanks(ranks)));
    return spec;
  }
  std::vector<ShardMetadata> shards;
  for (const PlacedBox& box : layout.boxes) {
    shards.push_back({.offsets = box.offsets,
                      .sizes = box.sizes,
                      .placement = Placement::OnRank(box.rank)});
  }
  SHERD_ASSIGN_OR_RETURN(ShardingSpecPtr spec,
                         EnumerableShardingSpec::Create(std::move(shards)));
  return spec;
}

}  // namespace sherd
