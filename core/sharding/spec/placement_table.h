#ifndef SHERD_CORE_SHARDING_SPEC_PLACEMENT_TABLE_H_
#define SHERD_CORE_SHARDING_SPEC_PLACEMENT_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"

namespace sherd::internal {

// The different placements of shards in the order in which they occur, and
// their numbers: encodings have each placement once, since many shards may
// share one.
class PlacementTable {
 public:
  explicit PlacementTable(absl::Span<const ShardMetadata> shards) {
    for (const ShardMetadata& shard : shards) {
      if (!shard.placement) continue;
      const auto [it, added] = numbers_.try_emplace(
          *shard.placement, static_cast<int64_t>(list_.size()));
      if (added) list_.push_back(&it->first);
    }
  }

  const std::vector<const Placement*>& list() const { return list_; }
  // -1 for a shard without a placement.
  int64_t NumberOf(const ShardMetadata& shard) const {
    return shard.placement ? numbers_.at(*shard.placement) : -1;
  }

 private:
  absl::node_hash_map<Placement, int64_t> numbers_;
  std::vector<const Placement*> list_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_SPEC_PLACEMENT_TABLE_H_
