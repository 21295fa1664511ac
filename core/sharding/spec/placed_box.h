#ifndef SHERD_CORE_SHARDING_SPEC_PLACED_BOX_H_
#define SHERD_CORE_SHARDING_SPEC_PLACED_BOX_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/box/box_set.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/box.h"

namespace sherd {

// A box of the global tensor and the rank that holds it, or will hold it.
struct PlacedBox : Box {
  int rank = 0;

  friend bool operator==(const PlacedBox&, const PlacedBox&) = default;
};

// One PlacedBox per shard, in the same order, by rank in the group.
//
// Errors. See RankResolver::Resolve; the message has the shard.
absl::StatusOr<std::vector<PlacedBox>> PlacedBoxes(
    absl::Span<const ShardMetadata> shards, const RankResolver& resolver);
// For a member of the group of `world_ranks` that knows no worker names.
absl::StatusOr<std::vector<PlacedBox>> PlacedBoxes(
    absl::Span<const ShardMetadata> shards, absl::Span<const int> world_ranks);

namespace internal {

// The largest number of elements whose bytes fit in 64 bits with any dtype.
inline constexpr int64_t kMaxPlannedElements =
    std::numeric_limits<int64_t>::max() / 16;

// "box at [0, 2] of size [4, 2] on rank 3".
std::string FormatPlacedBox(const PlacedBox& box);

// Checks boxes before planning. Returns the number of dimensions, the same for
// all; 0 if there are no boxes.
//   kInvalidArgument  A box is malformed or has another number of dimensions
//                     than the first, or its rank has no entry in
//                     `host_of_rank`, unless that is empty.
absl::StatusOr<int> CheckBoxes(absl::Span<const PlacedBox> from,
                               absl::Span<const PlacedBox> to,
                               absl::Span<const int> host_of_rank);

// All boxes that are not empty, by their position in the list.
BoxSet ToBoxSet(absl::Span<const PlacedBox> boxes, int dims);

// The largest rank in either list; 0 if there are none.
int LastRank(absl::Span<const PlacedBox> from, absl::Span<const PlacedBox> to);

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SPEC_PLACED_BOX_H_
