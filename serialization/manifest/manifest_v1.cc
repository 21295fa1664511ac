#include "sherd/serialization/manifest/manifest_v1.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/spec/shard_validation.h"
#include "sherd/serialization/manifest/manifest_sections.h"

namespace sherd {
namespace {

absl::Status CheckFiles(const ManifestV1& manifest) {
  absl::flat_hash_set<absl::string_view> names;
  for (const ManifestFileV1& file : manifest.files) {
    SHERD_RETURN_IF_ERROR(CheckFileName(file.name));
    if (!names.insert(file.name).second) {
      return absl::DataLossError(
          absl::StrCat("the file ", file.name, " appears twice"));
    }
    if (file.data_begin < 0 || file.data_begin > file.size) {
      return absl::DataLossError(absl::StrCat(
          "the data of file ", file.name, " begins at offset ", file.data_begin,
          ", but the file has ", file.size, " bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBox(const ManifestTensorV1& tensor,
                      const ManifestShardV1& shard) {
  if (IsInside(shard, tensor.sizes)) return absl::OkStatus();
  // As in a layout, an empty shard holds nothing, wherever it is.
  if (IsEmpty(shard) && IsValid(shard) &&
      IsInside({Dims(shard.sizes.size(), 0), shard.sizes}, tensor.sizes)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      "tensor ", Quoted(tensor.name), ": the shard of ", FormatBox(shard),
      " is not inside ", FormatDims(tensor.sizes)));
}

absl::Status CheckPlace(const ManifestV1& manifest,
                        const ManifestTensorV1& tensor,
                        const ManifestShardV1& shard) {
  const std::string where =
      absl::StrCat("tensor ", Quoted(tensor.name), ": the shard at ",
                   FormatDims(shard.offsets));
  if (shard.placement < 0 ||
      shard.placement >= static_cast<int64_t>(manifest.placements.size())) {
    return absl::DataLossError(absl::StrCat(where, " has placement ",
                                            shard.placement, " of ",
                                            manifest.placements.size()));
  }
  const int64_t bytes = manifest.ShardBytes(tensor, shard);
  if (bytes == 0) {
    if (shard.file == -1 && shard.file_offset == 0) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(where, " is empty, but has a place in a file"));
  }
  if (shard.file < 0 ||
      shard.file >= static_cast<int64_t>(manifest.files.size())) {
    return absl::DataLossError(absl::StrCat(where, " is in file ", shard.file,
                                            " of ", manifest.files.size()));
  }
  const ManifestFileV1& file = manifest.files[shard.file];
  if (shard.file_offset < file.data_begin || shard.file_offset > file.size ||
      bytes > file.size - shard.file_offset) {
    return absl::DataLossError(absl::StrCat(
        where, " has ", bytes, " bytes at offset ", shard.file_offset,
        " of file ", file.name, ", whose data is [", file.data_begin, ", ",
        file.size, ")"));
  }
  return absl::OkStatus();
}

// Whether the shards hold each element exactly once.
absl::Status CheckCover(const ManifestTensorV1& tensor) {
  std::vector<ShardMetadata> shards;
  shards.reserve(tensor.shards.size());
  for (const ManifestShardV1& shard : tensor.shards) {
    shards.push_back({.offsets = shard.offsets, .sizes = shard.sizes});
  }
  absl::Status status = ValidateNonOverlapping(shards);
  if (status.ok()) status = ValidateCover(shards, tensor.sizes);
  if (status.ok()) return status;
  return absl::DataLossError(
      absl::StrCat("tensor ", Quoted(tensor.name), ": ", status.message()));
}

// Whether the shards fill the data of each file without gap or overlap.
absl::Status CheckFilesAreFilled(const ManifestV1& manifest) {
  struct Range {
    int32_t file;
    int64_t begin;
    int64_t end;
    const ManifestTensorV1* tensor;
  };
  std::vector<Range> ranges;
  for (const ManifestTensorV1& tensor : manifest.tensors) {
    for (const ManifestShardV1& shard : tensor.shards) {
      const int64_t bytes = manifest.ShardBytes(tensor, shard);
      if (bytes == 0) continue;
      ranges.push_back(
          {shard.file, shard.file_offset, shard.file_offset + bytes, &tensor});
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.file, a.begin, a.end) < std::tie(b.file, b.begin, b.end);
  });
  size_t next = 0;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFileV1& file = manifest.files[i];
    int64_t position = file.data_begin;
    for (; next < ranges.size() && ranges[next].file == static_cast<int>(i);
         ++next) {
      if (ranges[next].begin != position) {
        return absl::DataLossError(absl::StrCat(
            "file ", file.name, ": tensor ", Quoted(ranges[next].tensor->name),
            " begins at offset ", ranges[next].begin, ", expected ", position,
            ": an overlap or a hole"));
      }
      position = ranges[next].end;
    }
    if (position != file.size) {
      return absl::DataLossError(absl::StrCat(
          "file ", file.name, " has ", file.size - position,
          " bytes from offset ", position, " on that belong to no tensor"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckChunks(const ManifestV1& manifest) {
  int64_t next = 0;
  for (const ManifestTensorV1& tensor : manifest.tensors) {
    for (const ManifestShardV1& shard : tensor.shards) {
      if (shard.first_chunk != next) {
        return absl::DataLossError(
            absl::StrCat("tensor ", Quoted(tensor.name), ": the shard at ",
                         FormatDims(shard.offsets), " has its CRCs from ",
                         shard.first_chunk, " on, expected ", next));
      }
      const auto end = CheckedAdd(next, manifest.NumChunks(tensor, shard));
      next = end.value_or(std::numeric_limits<int64_t>::max());
    }
  }
  if (next == static_cast<int64_t>(manifest.chunk_crc32c.size())) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("there are ",
                                          manifest.chunk_crc32c.size(),
                                          " CRCs for ", next, " chunks"));
}

}  // namespace

int64_t ManifestV1::ShardBytes(const ManifestTensorV1& tensor,
                               const ManifestShardV1& shard) const {
  return Volume(shard) * static_cast<int64_t>(SizeOf(tensor.dtype));
}

int64_t ManifestV1::NumChunks(const ManifestTensorV1& tensor,
                              const ManifestShardV1& shard) const {
  const int64_t bytes = ShardBytes(tensor, shard);
  return bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0);
}

namespace {

ManifestTensor TensorFromV1(const ManifestV1& manifest,
                            const ManifestTensorV1& from) {
  ManifestTensor tensor = {.name = from.name,
                           .dtype = from.dtype,
                           .requires_grad = from.requires_grad,
                           .kind = from.layout,
                           .chunk_dim = from.chunk_dim};
  const std::vector<Box> boxes(from.shards.begin(), from.shards.end());
  std::vector<int64_t> order;
  tensor.layout = SavedLayout::FromBoxes(from.sizes, boxes, &order);
  // The order of the shards is that of the CRCs.
  if (!std::is_sorted(order.begin(), order.end())) {
    tensor.layout = SavedLayout::Boxes(from.sizes, boxes);
  }
  for (const ManifestShardV1& shard : from.shards) {
    SavedShardPlace place = {.placement = shard.placement};
    if (shard.file >= 0) {
      place.extents.push_back(
          {.file = shard.file,
           .data_offset =
               shard.file_offset - manifest.files[shard.file].data_begin,
           .bytes = manifest.ShardBytes(from, shard),
           .first_chunk = shard.first_chunk});
    }
    AppendPlace(std::move(place), manifest.chunk_bytes, tensor.runs);
  }
  return tensor;
}

ManifestTensorV1 TensorToV1(const Manifest& manifest,
                            const ManifestTensor& from, int64_t& next_chunk) {
  ManifestTensorV1 tensor = {.name = from.name,
                             .dtype = from.dtype,
                             .sizes = from.sizes(),
                             .requires_grad = from.requires_grad,
                             .layout = from.kind,
                             .chunk_dim = from.chunk_dim};
  tensor.shards.reserve(static_cast<size_t>(from.num_shards()));
  for (int64_t i = 0; i < from.num_shards(); ++i) {
    ManifestShardV1& shard = tensor.shards.emplace_back();
    from.layout.BoxAt(i, shard);
    const SavedShardPlace place = from.PlaceOf(i, manifest.chunk_bytes);
    shard.placement = place.placement;
    shard.first_chunk = next_chunk;
    if (place.extents.empty()) continue;
    const SavedExtent& extent = place.extents[0];
    shard.file = extent.file;
    shard.file_offset =
        manifest.files[extent.file].data_begin + extent.data_offset;
    next_chunk += NumChunks(extent.bytes, manifest.chunk_bytes);
  }
  return tensor;
}

}  // namespace

Manifest FromV1(ManifestV1 from) {
  Manifest manifest;
  manifest.version = 1;
  manifest.writer = from.writer;
  manifest.save_id = from.save_id;
  manifest.world_size = from.world_size;
  manifest.chunk_bytes = from.chunk_bytes;
  for (const ManifestFileV1& file : from.files) {
    manifest.files.push_back({.name = file.name,
                              .size = file.size,
                              .data_begin = file.data_begin,
                              .header_crc32c = file.header_crc32c});
  }
  for (const ManifestTensorV1& tensor : from.tensors) {
    manifest.tensors.push_back(TensorFromV1(from, tensor));
  }
  manifest.placements = std::move(from.placements);
  manifest.chunk_crc32c = std::move(from.chunk_crc32c);
  return manifest;
}

ManifestV1 ToV1(const Manifest& from) {
  ManifestV1 manifest;
  manifest.writer = from.writer;
  manifest.save_id = from.save_id;
  manifest.world_size = from.world_size;
  manifest.chunk_bytes = from.chunk_bytes;
  for (const ManifestFile& file : from.files) {
    manifest.files.push_back(
        {file.name, file.size, file.data_begin, file.header_crc32c});
  }
  manifest.placements = from.placements;
  int64_t next_chunk = 0;
  for (const ManifestTensor& tensor : from.tensors) {
    manifest.tensors.push_back(TensorToV1(from, tensor, next_chunk));
  }
  manifest.chunk_crc32c = from.chunk_crc32c;
  return manifest;
}

absl::Status ValidateShapesV1(const ManifestV1& manifest) {
  if (manifest.chunk_bytes < 1 || manifest.chunk_bytes > kMaxChunkBytes) {
    return absl::DataLossError(
        absl::StrCat("chunks have ", manifest.chunk_bytes,
                     " bytes, expected 1 to ", kMaxChunkBytes));
  }
  for (const ManifestTensorV1& tensor : manifest.tensors) {
    SHERD_RETURN_IF_ERROR(CheckTensorForm(tensor.name, tensor.sizes,
                                          tensor.dtype, tensor.layout,
                                          tensor.chunk_dim));
    for (const ManifestShardV1& shard : tensor.shards) {
      SHERD_RETURN_IF_ERROR(CheckBox(tensor, shard));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateManifestV1(const ManifestV1& manifest) {
  SHERD_RETURN_IF_ERROR(CheckText("the writer", manifest.writer));
  SHERD_RETURN_IF_ERROR(CheckText("the save id", manifest.save_id));
  if (manifest.world_size < 1) {
    return absl::DataLossError(
        absl::StrCat("the world size is ", manifest.world_size));
  }
  for (const std::string& placement : manifest.placements) {
    SHERD_RETURN_IF_ERROR(CheckText("a placement", placement));
  }
  SHERD_RETURN_IF_ERROR(CheckFiles(manifest));
  SHERD_RETURN_IF_ERROR(ValidateShapesV1(manifest));
  const ManifestTensorV1* previous = nullptr;
  for (const ManifestTensorV1& tensor : manifest.tensors) {
    if (previous != nullptr && previous->name >= tensor.name) {
      return absl::DataLossError(absl::StrCat(
          "tensor ", Quoted(tensor.name), " follows ", Quoted(previous->name),
          ", expected each name once, in order"));
    }
    previous = &tensor;
    for (const ManifestShardV1& shard : tensor.shards) {
      SHERD_RETURN_IF_ERROR(CheckPlace(manifest, tensor, shard));
    }
    SHERD_RETURN_IF_ERROR(CheckCover(tensor));
  }
  SHERD_RETURN_IF_ERROR(CheckFilesAreFilled(manifest));
  return CheckChunks(manifest);
}

}  // namespace sherd
