#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_PLAN_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest/manifest_v1.h"

namespace sherd {

// Assigns shards to files: a pure function of the layouts, so that every rank
// knows its own file, and rank 0 all of them, without communication.

struct ShardToSave : Box {
  // Of the group.
  int rank = 0;
  // As in the manifest: "rank:0/cpu".
  std::string placement;
  // Index in the tensor's metadata of the shard that this is, or is part of.
  size_t held = 0;

  friend bool operator==(const ShardToSave&, const ShardToSave&) = default;
};

struct TensorToSave {
  std::string name;
  DType dtype = kFloat32;
  Dims sizes;
  bool requires_grad = false;
  SavedLayoutKind layout = SavedLayoutKind::kEnumerable;
  int32_t chunk_dim = 0;
  // The shards of all ranks.
  std::vector<ShardToSave> shards;

  std::vector<PlacedBox> Boxes() const;
};

// Assigns each element of a shard that several ranks hold to one owner; large
// shards in parts, so that all of them write. `load` counts the bytes of each
// rank, from tensor to tensor. Without replicas the layout is unchanged.
void AssignReplicaOwners(TensorToSave& tensor, absl::Span<int64_t> load);

// A shard, by its tensor's index in a list and its own index in the tensor.
struct ShardIndex {
  size_t tensor = 0;
  size_t shard = 0;
};

// The data file of one rank.
struct RankFile {
  // Empty if the rank has no elements, and therefore no file.
  std::string name;
  // The bytes before the data.
  std::string header;
  int64_t size = 0;

  struct Place {
    ShardIndex index;
    int64_t file_offset = 0;
    int64_t bytes = 0;
  };
  // Ordered by file_offset.
  std::vector<Place> places;
};

// The shards of each rank, in the order of the tensors and of their shards.
std::vector<std::vector<ShardIndex>> ShardsByRank(
    const std::vector<TensorToSave>& tensors, int world_size);

// The file of `rank`, whose shards are `shards`.
absl::StatusOr<RankFile> PlanRankFile(const std::vector<TensorToSave>& tensors,
                                      const std::vector<ShardIndex>& shards,
                                      int rank, int world_size,
                                      absl::string_view save_id);

// The manifest of the whole save, without the CRCs of the data: chunk_crc32c
// has its final length and is all zero. `tensors` are ordered by name.
absl::StatusOr<ManifestV1> PlanManifest(
    const std::vector<TensorToSave>& tensors, int world_size,
    absl::string_view save_id);

// Whether a name in a checkpoint's directory is one that a save gives to its
// data files and temporary files, and may therefore remove.
bool IsSaveFileName(absl::string_view name);

// The temporary name of a manifest that is not committed, of any save.
bool IsStagedManifestName(absl::string_view name);
std::string StagedManifestName(absl::string_view save_id);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_PLAN_H_
