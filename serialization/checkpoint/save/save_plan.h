#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_SAVE_PLAN_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_SAVE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/saved_layout.h"

namespace sherd {

// Assigns shards to files: a pure function of the layouts, so that every rank
// knows its own file, and rank 0 all of them, without communication. Nothing
// here takes memory per shard of a grid whose owners follow one another.

// Consecutive shards of a tensor and the ranks that write them: shard number k
// of the run is written by rank `rank + k * rank_step`.
struct OwnerRun {
  int64_t shards = 1;
  // Of the group.
  int32_t rank = 0;
  int32_t placement = 0;
  // Each 0 or 1.
  int32_t rank_step = 0;
  int32_t placement_step = 0;

  friend bool operator==(const OwnerRun&, const OwnerRun&) = default;
};

// Continues the last run if it can.
void AppendOwner(int32_t rank, int32_t placement, std::vector<OwnerRun>& runs);

// A tensor to be saved, whose layout has each element once.
struct TensorLayout {
  std::string name;
  DType dtype = kFloat32;
  bool requires_grad = false;
  SavedLayoutKind kind = SavedLayoutKind::kEnumerable;
  int32_t chunk_dim = 0;
  SavedLayout layout;
  // Together as many shards as the layout has boxes. Tensors may share it.
  std::shared_ptr<const std::vector<OwnerRun>> owners;
};

// All that is saved.
struct SaveLayout {
  int world_size = 1;
  // "rank:0/cpu", …, which the owners refer to.
  std::vector<std::string> placements;
  // By name.
  std::vector<TensorLayout> tensors;
};

// A shard in the file of the rank that owns it.
struct FileShard {
  // Index into SaveLayout::tensors, and number in that tensor's layout.
  int32_t tensor = 0;
  int64_t shard = 0;
  int64_t bytes = 0;
  // Index into SaveLayout::placements.
  int32_t placement = 0;
  // As in SavedExtent.
  int64_t data_offset = 0;
  int64_t first_chunk = 0;

  friend bool operator==(const FileShard&, const FileShard&) = default;
};

// Of a shard with elements: sorted by this, then by number, they are in the
// order of a file.
std::tuple<int64_t, int64_t, int32_t> OrderInFile(int64_t bytes,
                                                  int32_t tensor);

// The data of one rank's file: the shards that have elements, by falling
// alignment (the largest power of two, up to 4096, that divides their bytes),
// then by falling size, then by tensor and number. So each begins at a multiple
// of its alignment, without holes.
struct RankFile {
  std::vector<FileShard> shards;
  // Of the shards, without the table of CRCs behind them.
  int64_t data_bytes = 0;
  int64_t chunks = 0;
};

// The file of `rank`; without shards if it has no elements.
//
// Cost. O(runs of owners), and n log n for the n shards of the rank.
RankFile PlanRankFile(const SaveLayout& layout, int rank);

// How many ranks have elements, and so a file.
//
// Cost. As ForEachEqualShards for each tensor.
int CountFiles(const SaveLayout& layout);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_SAVE_PLAN_H_
