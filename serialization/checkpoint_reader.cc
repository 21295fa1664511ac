#include "sherd/serialization/checkpoint_reader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest_codec.h"
#include "sherd/serialization/shard_reader.h"

namespace sherd {
namespace {

absl::Status CheckSlice(const ManifestTensor& tensor,
                        absl::Span<const int64_t> offsets,
                        absl::Span<const int64_t> sizes) {
  const size_t rank = tensor.sizes.size();
  if (offsets.size() != rank || sizes.size() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(tensor.name), " has ", rank,
                     " dimensions, but the slice has ", offsets.size(),
                     " offsets and ", sizes.size(), " sizes"));
  }
  for (size_t d = 0; d < rank; ++d) {
    if (offsets[d] < 0 || sizes[d] < 0 || offsets[d] > tensor.sizes[d] ||
        sizes[d] > tensor.sizes[d] - offsets[d]) {
      return absl::OutOfRangeError(absl::StrCat(
          "the slice of ", FormatDims(sizes), " at ", FormatDims(offsets),
          " is not inside tensor ", Quoted(tensor.name), ", which is ",
          FormatDims(tensor.sizes)));
    }
  }
  return absl::OkStatus();
}

// Where a shard and a slice overlap: relative to each, and how large. False if
// nowhere.
struct Overlap {
  Dims in_shard;
  Dims in_slice;
  Dims sizes;
};

bool FindOverlap(const ManifestShard& shard, absl::Span<const int64_t> offsets,
                 absl::Span<const int64_t> sizes, Overlap& overlap) {
  overlap = {};
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int64_t begin = std::max(shard.offsets[d], offsets[d]);
    const int64_t end =
        std::min(shard.offsets[d] + shard.sizes[d], offsets[d] + sizes[d]);
    if (begin >= end) return false;
    overlap.in_shard.push_back(begin - shard.offsets[d]);
    overlap.in_slice.push_back(begin - offsets[d]);
    overlap.sizes.push_back(end - begin);
  }
  return true;
}

}  // namespace

absl::StatusOr<Manifest> ReadManifest(FileSystem& files,
                                      const std::string& path) {
  const std::string manifest_path = JoinPath(path, kManifestFileName);
  if (!files.IsDirectory(path) || !files.Exists(manifest_path)) {
    return absl::NotFoundError(absl::StrCat(
        path, " is not a checkpoint: there is no file ", manifest_path));
  }
  SHERD_ASSIGN_OR_RETURN(const std::string bytes,
                         ReadFile(files, manifest_path, kMaxManifestBytes));
  return DecodeManifest(bytes, manifest_path);
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
  if (absl::Status status = CheckSlice(tensor, offsets, sizes); !status.ok()) {
    return Annotate(status, path_);
  }
  // First whether the files are as large as the manifest says: only then is
  // it to be believed about how much memory the slice takes.
  ShardReader reader(path_, *manifest_, *files_);
  std::vector<std::pair<const ManifestShard*, Overlap>> overlaps;
  for (const ManifestShard& shard : tensor.shards) {
    Overlap overlap;
    if (shard.file < 0 || !FindOverlap(shard, offsets, sizes, overlap)) {
      continue;
    }
    SHERD_RETURN_IF_ERROR(reader.Open(shard.file));
    overlaps.emplace_back(&shard, std::move(overlap));
  }
  SHERD_ASSIGN_OR_RETURN(Tensor result,
                         Tensor::Empty(sizes, {.dtype = tensor.dtype}));
  for (const auto& [shard, overlap] : overlaps) {
    SHERD_ASSIGN_OR_RETURN(Tensor part,
                           result.Narrow(overlap.in_slice, overlap.sizes));
    SHERD_RETURN_IF_ERROR(
        reader.ReadBoxChecked({&tensor, shard}, overlap.in_shard, part));
  }
  return result;
}

}  // namespace sherd
