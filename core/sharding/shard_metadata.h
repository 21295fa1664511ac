#ifndef SHERD_CORE_SHARDING_SHARD_METADATA_H_
#define SHERD_CORE_SHARDING_SHARD_METADATA_H_

#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/types/tensor_properties.h"

namespace sherd {

// Whether a box may occur several times in the shards of a tensor, each time
// with another placement: as replicas, which hold the same elements. Any other
// overlap is always an error.
enum class Replicas { kRefused, kAllowed };

// One box of a global tensor and its place:
//
//     ShardMetadata{.offsets = {0, 5}, .sizes = {5, 5},
//                   .placement = "rank:1/cpu"}
//
// Layout. As Box. The offsets of an empty box may lie past the end of the
// tensor, as those of trailing chunks do. Offsets and sizes are members of
// their own so that designators may name them; functions that take a BoxView
// accept the shard itself.
struct ShardMetadata {
  Dims offsets;
  Dims sizes;
  std::optional<Placement> placement;

  operator BoxView() const {  // NOLINT(google-explicit-constructor)
    return {offsets, sizes};
  }

  //   kInvalidArgument     Offsets and sizes do not have the "same number of
  //                        elements", "shard_offsets should be >=0",
  //                        "shard_sizes should be >= 0", or the end of the box
  //                        or its number of elements overflows.
  //   other                The placement's status().
  absl::Status Validate() const;

  // "ShardMetadata(offsets=[0, 5], sizes=[5, 5], placement=rank:1/cpu)".
  std::string ToString() const;

  friend bool operator==(const ShardMetadata&, const ShardMetadata&) = default;

  template <typename H>
  friend H AbslHashValue(H state, const ShardMetadata& shard) {
    state = H::combine(std::move(state), shard.offsets, shard.sizes,
                       shard.placement.has_value());
    if (!shard.placement) return state;
    return H::combine(std::move(state), *shard.placement);
  }
};

std::ostream& operator<<(std::ostream& out, const ShardMetadata& shard);

// Whether the boxes are equal and the placements, too, by SamePlace.
bool SameShard(const ShardMetadata& a, const ShardMetadata& b);

// All shards of a tensor, of all ranks.
struct ShardedTensorMetadata {
  std::vector<ShardMetadata> shards;
  // Of the global tensor.
  Dims size;
  TensorProperties properties;

  std::string ToString() const;

  friend bool operator==(const ShardedTensorMetadata&,
                         const ShardedTensorMetadata&) = default;
};

std::ostream& operator<<(std::ostream& out,
                         const ShardedTensorMetadata& metadata);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARD_METADATA_H_
