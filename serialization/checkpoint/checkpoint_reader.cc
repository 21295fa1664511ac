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
#include "sherd/serialization/safetensors/box_pieces.h"

namespace sherd {
namespace {

// A shard and what a slice takes of it, as a box of the tensor.
struct SlicedShard {
  const ManifestShard* shard;
  Box common;
};

// Whether the directory has a manifest, or a link in its place, wherever that
// leads.
absl::StatusOr<bool> HasManifestName(FileSystem& files,
                                     const std::string& path) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(path);
  if (absl::IsNotFound(names.status())) return false;
  SHERD_RETURN_IF_ERROR(names.status());
  return std::binary_search(names->begin(), names->end(), kManifestFileName);
}

// A disk that is away, and comes back, is not a checkpoint that is missing.
absl::Status LeadsNowhere(const std::string& manifest_path) {
  return absl::FailedPreconditionError(absl::StrCat(
      manifest_path,
      " is the name of a file that is not there: expected a file, or a link to "
      "one; mount the disk to which the link leads, or remove the link"));
}

}  // namespace

absl::StatusOr<Manifest> ReadManifest(FileSystem& files,
                                      const std::string& path) {
  const std::string manifest_path = JoinPath(path, kManifestFileName);
  absl::StatusOr<std::string> bytes =
      ReadFile(files, manifest_path, kMaxManifestBytes);
  if (absl::IsNotFound(bytes.status())) {
    SHERD_ASSIGN_OR_RETURN(const bool is_named, HasManifestName(files, path));
    if (!is_named) {
      return absl::NotFoundError(absl::StrCat(
          path, " is not a checkpoint: there is no file ", manifest_path));
    }
    // A first save may have given the name since.
    bytes = ReadFile(files, manifest_path, kMaxManifestBytes);
    if (absl::IsNotFound(bytes.status())) return LeadsNowhere(manifest_path);
  }
  SHERD_RETURN_IF_ERROR(bytes.status());
  return DecodeManifest(*bytes, manifest_path);
}

absl::StatusOr<bool> CheckpointExists(const std::string& path,
                                      FileSystem& files) {
  const std::string manifest_path = JoinPath(path, kManifestFileName);
  SHERD_ASSIGN_OR_RETURN(bool exists, files.Exists(manifest_path));
  if (exists) return true;
  SHERD_ASSIGN_OR_RETURN(const bool is_named, HasManifestName(files, path));
  if (!is_named) return false;
  // As in ReadManifest.
  SHERD_ASSIGN_OR_RETURN(exists, files.Exists(manifest_path));
  if (exists) return true;
  return LeadsNowhere(manifest_path);
}

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
  return ReadSlice(name, Dims((*tensor)->sizes.size(), 0), (*tensor)->sizes);
}

absl::StatusOr<Tensor> CheckpointReader::ReadSlice(
    absl::string_view name, absl::Span<const int64_t> offsets,
    absl::Span<const int64_t> sizes) const {
  absl::StatusOr<const ManifestTensor*> found = manifest_->Find(name);
  if (!found.ok()) return Annotate(found.status(), path_);
  const ManifestTensor& tensor = **found;
  const BoxView slice(offsets, sizes);
  if (absl::Status status = CheckSlice(tensor.name, tensor.sizes, slice);
      !status.ok()) {
    return Annotate(std::move(status), path_);
  }
  // First check that the files have the sizes in the manifest: only then is the
  // manifest trusted about the memory that the slice needs.
  ShardReader reader(path_, *manifest_, *files_);
  std::vector<SlicedShard> sliced;
  for (const ManifestShard& shard : tensor.shards) {
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
