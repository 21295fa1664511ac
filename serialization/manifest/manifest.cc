#include "sherd/serialization/manifest/manifest.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/spec/shard_validation.h"
#include "sherd/serialization/safetensors/safetensors_header.h"

namespace sherd {
namespace {

constexpr size_t kMaxTextBytes = 1024;

absl::Status CheckText(absl::string_view what, absl::string_view text) {
  if (text.size() <= kMaxTextBytes && IsValidUtf8(text)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(what, " of ", text.size(),
                                          " bytes is too long or not UTF-8"));
}

// A name that stays in the checkpoint's directory.
bool IsFileName(absl::string_view name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  c == '-' || c == '_' || c == '.';
         });
}

absl::Status CheckFiles(const Manifest& manifest) {
  absl::flat_hash_set<absl::string_view> names;
  for (const ManifestFile& file : manifest.files) {
    if (!IsFileName(file.name)) {
      return absl::DataLossError(
          absl::StrCat("a file name of ", file.name.size(),
                       " bytes has more than letters, digits, \"-\", \"_\" and "
                       "\".\", or begins with \".\""));
    }
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

absl::Status CheckTensor(const ManifestTensor& tensor) {
  if (tensor.name.empty() ||
      static_cast<int64_t>(tensor.name.size()) > kMaxTensorNameBytes ||
      !IsValidUtf8(tensor.name)) {
    return absl::DataLossError(
        absl::StrCat("a tensor name of ", tensor.name.size(),
                     " bytes is empty, too long or not UTF-8"));
  }
  const std::string where = absl::StrCat("tensor ", Quoted(tensor.name));
  if (const auto bytes = NumBytes(tensor.sizes, tensor.dtype); !bytes.ok()) {
    return absl::DataLossError(
        absl::StrCat(where, ": ", bytes.status().message()));
  }
  const int64_t rank = static_cast<int64_t>(tensor.sizes.size());
  if (tensor.layout == SavedLayout::kChunk
          ? tensor.chunk_dim < 0 || tensor.chunk_dim >= rank
          : tensor.chunk_dim != 0) {
    return absl::DataLossError(absl::StrCat(where, " is said to be cut along ",
                                            "dimension ", tensor.chunk_dim,
                                            " of ", rank));
  }
  return absl::OkStatus();
}

absl::Status CheckBox(const ManifestTensor& tensor,
                      const ManifestShard& shard) {
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

absl::Status CheckPlace(const Manifest& manifest, const ManifestTensor& tensor,
                        const ManifestShard& shard) {
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
  const ManifestFile& file = manifest.files[shard.file];
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
absl::Status CheckCover(const ManifestTensor& tensor) {
  std::vector<ShardMetadata> shards;
  shards.reserve(tensor.shards.size());
  for (const ManifestShard& shard : tensor.shards) {
    shards.push_back({.offsets = shard.offsets, .sizes = shard.sizes});
  }
  absl::Status status = ValidateNonOverlapping(shards);
  if (status.ok()) status = ValidateCover(shards, tensor.sizes);
  if (status.ok()) return status;
  return absl::DataLossError(
      absl::StrCat("tensor ", Quoted(tensor.name), ": ", status.message()));
}

// Whether the shards fill the data of each file without gap or overlap.
absl::Status CheckFilesAreFilled(const Manifest& manifest) {
  struct Range {
    int32_t file;
    int64_t begin;
    int64_t end;
    const ManifestTensor* tensor;
  };
  std::vector<Range> ranges;
  for (const ManifestTensor& tensor : manifest.tensors) {
    for (const ManifestShard& shard : tensor.shards) {
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
    const ManifestFile& file = manifest.files[i];
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

absl::Status CheckChunks(const Manifest& manifest) {
  int64_t next = 0;
  for (const ManifestTensor& tensor : manifest.tensors) {
    for (const ManifestShard& shard : tensor.shards) {
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

int64_t Manifest::ShardBytes(const ManifestTensor& tensor,
                             const ManifestShard& shard) const {
  return Volume(shard) * static_cast<int64_t>(SizeOf(tensor.dtype));
}

int64_t Manifest::NumChunks(const ManifestTensor& tensor,
                            const ManifestShard& shard) const {
  const int64_t bytes = ShardBytes(tensor, shard);
  return bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0);
}

absl::StatusOr<const ManifestTensor*> Manifest::Find(
    absl::string_view name) const {
  const auto it = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const ManifestTensor& tensor, absl::string_view wanted) {
        return absl::string_view(tensor.name) < wanted;
      });
  if (it != tensors.end() && it->name == name) return &*it;
  std::string known;
  for (size_t i = 0; i < std::min<size_t>(3, tensors.size()); ++i) {
    absl::StrAppend(&known, i == 0 ? ", among them " : ", ",
                    tensors[i].name.substr(0, 200));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the checkpoint has no tensor ", Quoted(name), "; it has ",
                   tensors.size(), known));
}

std::string ShardKey(absl::string_view tensor_name,
                     absl::Span<const int64_t> offsets) {
  std::string key = absl::StrCat(tensor_name, "@");
  const char* separator = "";
  for (const int64_t offset : offsets) {
    absl::StrAppend(&key, separator, offset);
    separator = ",";
  }
  return key;
}

absl::Status ValidateShapes(const Manifest& manifest) {
  if (manifest.chunk_bytes < 1 || manifest.chunk_bytes > kMaxChunkBytes) {
    return absl::DataLossError(
        absl::StrCat("chunks have ", manifest.chunk_bytes,
                     " bytes, expected 1 to ", kMaxChunkBytes));
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    SHERD_RETURN_IF_ERROR(CheckTensor(tensor));
    for (const ManifestShard& shard : tensor.shards) {
      SHERD_RETURN_IF_ERROR(CheckBox(tensor, shard));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateManifest(const Manifest& manifest) {
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
  SHERD_RETURN_IF_ERROR(ValidateShapes(manifest));
  const ManifestTensor* previous = nullptr;
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (previous != nullptr && previous->name >= tensor.name) {
      return absl::DataLossError(absl::StrCat(
          "tensor ", Quoted(tensor.name), " follows ", Quoted(previous->name),
          ", expected each name once, in order"));
    }
    previous = &tensor;
    for (const ManifestShard& shard : tensor.shards) {
      SHERD_RETURN_IF_ERROR(CheckPlace(manifest, tensor, shard));
    }
    SHERD_RETURN_IF_ERROR(CheckCover(tensor));
  }
  SHERD_RETURN_IF_ERROR(CheckFilesAreFilled(manifest));
  return CheckChunks(manifest);
}

}  // namespace sherd
