#include "sherd/serialization/checkpoint_reader.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/shard_reader.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/manifest/manifest_v1.h"
#include "sherd/serialization/safetensors/box_pieces.h"

namespace sherd {
namespace {

// A shard and what a slice takes of it, as a box of the tensor.
struct SlicedShard {
  const ManifestShardV1* shard;
  Box common;
};

}  // namespace

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const std::string& path,
                                                        FileSystem& files) {
  SHERD_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(files, path));
  return CheckpointReader(
      path, files, std::make_shared<const Manifest>(std::move(manifest)));
}

absl::StatusOr<Tensor> CheckpointReader::ReadTensor(
    absl::string_view name) const {
  absl::StatusOr<const ManifestTensor*> tensor = manifest_->Find(name);
  if (!tensor.ok()) return Annotate(tensor.status(), path_);
  return ReadSlice(name, Dims((*tensor)->sizes().size(), 0),
                   (*tensor)->sizes());
}

absl::StatusOr<Tensor> CheckpointReader::ReadSlice(
    absl::string_view name, absl::Span<const int64_t> offsets,
    absl::Span<const int64_t> sizes) const {
  absl::StatusOr<const ManifestTensor*> found = manifest_->Find(name);
  if (!found.ok()) return Annotate(found.status(), path_);
  const ManifestV1 manifest = ToV1(*manifest_);
  const ManifestTensorV1& tensor =
      manifest.tensors[*found - manifest_->tensors.data()];
  const BoxView slice(offsets, sizes);
  if (absl::Status status = CheckSlice(tensor.name, tensor.sizes, slice);
      !status.ok()) {
    return Annotate(std::move(status), path_);
  }
  // First check that the files have the sizes in the manifest: only then is the
  // manifest trusted about the memory that the slice needs.
  ShardReader reader(path_, manifest, *files_);
  std::vector<SlicedShard> sliced;
  for (const ManifestShardV1& shard : tensor.shards) {
    if (shard.file < 0) continue;
    std::optional<Box> common = Intersect(shard, slice);
    if (!common) continue;
    SHERD_RETURN_IF_ERROR(reader.Open(shard.file));
    sliced.push_back({&shard, *std::move(common)});
  }
  SHERD_ASSIGN_OR_RETURN(Tensor result,
                         Tensor::Empty(sizes, {.dtype = tensor.dtype}));
  for (const auto& [shard, common] : sliced) {
    SHERD_ASSIGN_OR_RETURN(
        Tensor part,
        result.Narrow(OffsetsFrom(slice.offsets, common), common.sizes));
    SHERD_RETURN_IF_ERROR(reader.ReadBoxChecked(
        {&tensor, shard}, OffsetsFrom(shard->offsets, common), part));
  }
  return result;
}

}  // namespace sherd
