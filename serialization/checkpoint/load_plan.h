#ifndef SHERD_SERIALIZATION_CHECKPOINT_LOAD_PLAN_H_
#define SHERD_SERIALIZATION_CHECKPOINT_LOAD_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest/manifest_v1.h"

namespace sherd {

// Assigns to ranks the bytes that they read when a tensor is loaded. Pure
// functions of the manifest and the wanted layout, which all ranks have: they
// agree without communication.

// How the ranks divide the reading of one tensor.
enum class ReadStrategy {
  // Every saved shard is a wanted shard, which its owner reads and checks
  // alone.
  kWhole,
  // Each rank reads exactly the bytes that it needs, directly into place; the
  // ranks check CRCs together (see LinearCrc32c).
  kPieces,
  // The pieces would be many and short. Ranks read equal parts of the saved
  // shards, and exchange what they need.
  kExchange,
};

// Assigns the wanted shards of all ranks: each element to one rank, also if
// several want it (replicas), and large replicas in parts, so that all of these
// read. `load` counts the elements of each rank, from tensor to tensor.
struct WantedParts {
  // Boxes of the global tensor, each with the rank that reads it,
  std::vector<PlacedBox> boxes;
  // and the wanted shard of that rank that it belongs to.
  std::vector<size_t> shards;
  // The work after reading: the copies for the other holders, each equal to one
  // of `boxes`, and their wanted shards.
  std::vector<PlacedBox> copies;
  std::vector<size_t> copy_shards;
};
WantedParts DivideWanted(absl::Span<const PlacedBox> wanted,
                         size_t element_size, absl::Span<int64_t> load);

// `wanted` are the boxes of all ranks; each element is in one of them.
ReadStrategy ChooseReadStrategy(const ManifestTensorV1& saved,
                                absl::Span<const PlacedBox> wanted,
                                int world_size, int64_t min_read_bytes);

// A box of a saved shard that is copied to a box of a wanted one.
struct ShardRead {
  size_t saved = 0;
  size_t wanted = 0;
  Dims in_saved;
  Dims in_wanted;
  Dims sizes;
};

// For kWhole and kPieces: the reads of `rank`, ordered by shard and position.
absl::StatusOr<std::vector<ShardRead>> PlanReads(
    const ManifestTensorV1& saved, absl::Span<const PlacedBox> wanted,
    int rank);

// For kExchange: a contiguous part of a saved shard, and its reader.
struct ReadPart {
  size_t saved = 0;
  // In the saved shard.
  Dims offsets;
  // In the global tensor, with the rank.
  PlacedBox box;
};

// Parts that together are the tensor, about equally large for every rank.
std::vector<ReadPart> PlanParts(const ManifestTensorV1& saved, int world_size);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_LOAD_PLAN_H_
