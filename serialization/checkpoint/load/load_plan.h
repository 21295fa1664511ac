#ifndef SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOAD_PLAN_H_
#define SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOAD_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/saved_layout.h"

namespace sherd {

// Assigns to ranks the bytes that they read when tensors are loaded. Pure
// functions of what is saved and wanted. Where ranks must agree, they depend on
// facts that all ranks have; apart from these a rank plans its own reads only.

// How the ranks divide the reading of one tensor.
enum class ReadStrategy {
  // Each rank reads exactly the bytes that it needs, directly into place.
  kPieces,
  // The pieces would be many and short. Ranks read long pieces, in rounds, and
  // exchange what they need: see ExchangeStream.
  kExchange,
};

// Chooses for one tensor after another; all ranks in the same order.
class StrategyChooser {
 public:
  // Pieces of at least `min_read_bytes` are long.
  StrategyChooser(int world_size, int64_t min_read_bytes)
      : world_size_(world_size), min_read_bytes_(min_read_bytes) {}

  // `saved` and `wanted` are the sizes of the largest boxes: they represent
  // all, which is exact for grids, and otherwise good enough for a choice that
  // affects speed only.
  ReadStrategy Choose(const Dims& saved, const Dims& wanted,
                      size_t element_size);

 private:
  const int world_size_;
  const int64_t min_read_bytes_;
  // Of a rank, in the tensors so far that it reads in pieces.
  int64_t short_reads_ = 0;
};

Dims LargestSizes(const SavedLayout& layout);
Dims LargestSizes(absl::Span<const PlacedBox> boxes);

// Whether ranks hold elements of a tensor of these sizes more than once. Each
// element is in a box; boxes are equal or have no element in common.
bool HasReplicas(absl::Span<const int64_t> sizes,
                 absl::Span<const PlacedBox> boxes);

// A box that a rank reads: one of its wanted shards, or a part of one.
struct WantedBox {
  // Position in the list of all wanted shards.
  size_t shard = 0;
  // If it is not all of that.
  std::optional<Box> part;
  // Set by the caller, if the elements are one row-major run of host memory:
  // its first byte.
  std::byte* data = nullptr;

  // Where it is, `wanted` being the list of all wanted shards.
  BoxView In(absl::Span<const PlacedBox> wanted) const {
    return part ? BoxView(*part) : BoxView(wanted[shard]);
  }
};

// What a rank has to do for a tensor that is read in pieces and has replicas:
// each element is read by one of the ranks that hold it, large replicas in
// parts, so that all of these read; then others copy it.
struct ReplicaWork {
  std::vector<WantedBox> reads;
  // From and to this rank. Shards are numbered by their position in the list.
  std::vector<BoxCopy> copies;
};
// `load` counts the elements that each rank reads, from tensor to tensor. A
// function of what all ranks have, but for `rank`.
ReplicaWork PlanReplicas(absl::Span<const PlacedBox> wanted,
                         size_t element_size, int rank,
                         absl::Span<int64_t> load);

// A box that a rank reads: what a saved shard and a wanted box have in common.
struct ShardRead {
  // The caller's numbers of the tensor and of the wanted box.
  int32_t tensor = 0;
  int32_t wanted = 0;
  // Number in the layout.
  int64_t saved = 0;
  // Where the first byte is.
  int32_t file = 0;
  int64_t data_offset = 0;
  // If the box is one run of consecutive elements in both, row-major: how many,
  // and how many precede them in the saved shard and in the wanted box.
  // Otherwise `elements` is 0.
  int64_t elements = 0;
  int64_t from = 0;
  int64_t to = 0;

  friend bool operator==(const ShardRead&, const ShardRead&) = default;
};

// Adds the reads for a wanted box of a tensor.
//
// Cost. As SavedLayout::ForEachIn, and O(log runs) for each read.
void PlanReads(const ManifestTensor& saved, int64_t chunk_bytes, int32_t tensor,
               const BoxView& wanted, int32_t number,
               std::vector<ShardRead>& reads);

// Adds the reads for a tensor of which the layout and the wanted boxes are
// those of another: the same as reads[first] to reads[last - 1] of that,
// elsewhere in the files.
//
// Cost. O(log runs) for each read.
void RepeatReads(const ManifestTensor& saved, int64_t chunk_bytes,
                 int32_t tensor, size_t first, size_t last,
                 std::vector<ShardRead>& reads);

// In the order of files, and of the bytes in each.
void SortReads(std::vector<ShardRead>& reads);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOAD_PLAN_H_
