#ifndef SHERD_SERIALIZATION_CHECKPOINT_LOAD_PLAN_H_
#define SHERD_SERIALIZATION_CHECKPOINT_LOAD_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest/manifest.h"

namespace sherd {

// Who reads which bytes when a tensor is loaded. Pure functions of the manifest
// and the wanted layout, which all ranks have: they agree without a message.

// How the ranks divide the reading of one tensor.
enum class ReadStrategy {
  // Every saved shard is a wanted shard: its owner reads and checks it alone.
  kWhole,
  // Each rank reads exactly the bytes that it needs, straight to their place;
  // CRCs are checked together (see LinearCrc32c).
  kPieces,
  // The pieces would be many and short. Ranks read equal parts of the saved
  // shards, and hand each other what they need.
  kExchange,
};

// Who reads what of the wanted shards of all ranks: each element for one rank,
// also where several want it (replicas), and large replicas in parts, so that
// all of these read. `load` counts the elements of each rank, from tensor to
// tensor.
struct WantedParts {
  // Boxes of the global tensor, each with the rank that reads it,
  std::vector<PlacedBox> boxes;
  // and the wanted shard of that rank that it belongs to.
  std::vector<size_t> shards;
  // What is left to do when they have been read: the copies for the other
  // holders, each equal to one of `boxes`, and their wanted shards.
  std::vector<PlacedBox> copies;
  std::vector<size_t> copy_shards;
};
WantedParts DivideWanted(absl::Span<const PlacedBox> wanted,
                         size_t element_size, absl::Span<int64_t> load);

// `wanted` are the boxes of all ranks, each element in one of them.
ReadStrategy ChooseReadStrategy(const ManifestTensor& saved,
                                absl::Span<const PlacedBox> wanted,
                                int world_size, int64_t min_read_bytes);

// A box of a saved shard that becomes a box of a wanted one.
struct ShardRead {
  size_t saved = 0;
  size_t wanted = 0;
  Dims in_saved;
  Dims in_wanted;
  Dims sizes;
};

// For kWhole and kPieces: what `rank` reads, shard by shard, by place in each.
absl::StatusOr<std::vector<ShardRead>> PlanReads(
    const ManifestTensor& saved, absl::Span<const PlacedBox> wanted, int rank);

// For kExchange: a contiguous part of a saved shard and who reads it.
struct ReadPart {
  size_t saved = 0;
  // In the saved shard.
  Dims offsets;
  // In the global tensor, with the rank.
  PlacedBox box;
};

// Parts that together are the tensor, about the same for every rank.
std::vector<ReadPart> PlanParts(const ManifestTensor& saved, int world_size);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_LOAD_PLAN_H_
