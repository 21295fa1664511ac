#include "sherd/serialization/manifest/data_file_text.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/manifest/manifest_sections.h"

namespace sherd {
namespace {

constexpr int64_t kMaxDataOffset = int64_t{1} << 62;

// "CHUNKS" in the file itself, otherwise "CHUNKS:FILE:OFFSET:CHUNK", of which
// FILE counts from 1; joined by commas.
std::string ExtentsText(const SavedExtents& extents, int64_t chunk_bytes) {
  std::string text;
  for (const SavedExtent& extent : extents) {
    absl::StrAppend(&text, text.empty() ? "" : ",",
                    NumChunks(extent.bytes, chunk_bytes));
    if (extent.file == 0) continue;
    absl::StrAppend(&text, ":", extent.file, ":", extent.data_offset, ":",
                    extent.first_chunk);
  }
  return text;
}

// The extents of a shard of `bytes`, of which some are in the `files` earlier
// ones.
bool ReadExtents(TextScanner& text, int64_t bytes, int64_t chunk_bytes,
                 int64_t files, SavedExtents& extents) {
  bool is_split = false;
  bool was_here = false;
  do {
    int64_t chunks;
    if (!text.Number(chunks) || chunks < 1 ||
        chunks > NumChunks(bytes, chunk_bytes)) {
      return false;
    }
    SavedExtent& extent = extents.emplace_back();
    extent.bytes = chunks > bytes / chunk_bytes ? bytes : chunks * chunk_bytes;
    bytes -= extent.bytes;
    if (!text.Consume(':')) {
      // Two in a row would be one.
      if (std::exchange(was_here, true)) return false;
      continue;
    }
    was_here = false;
    is_split = true;
    int64_t file;
    if (!text.Number(file) || file < 1 || file > files || !text.Consume(':') ||
        !text.Number(extent.data_offset) ||
        extent.data_offset >= kMaxDataOffset || !text.Consume(':') ||
        !text.Number(extent.first_chunk) || extent.first_chunk < 1 ||
        extent.first_chunk > kMaxFileChunks) {
      return false;
    }
    extent.file = static_cast<int32_t>(file);
  } while (bytes > 0 && text.Consume(','));
  return bytes == 0 && is_split;
}

bool ReadSplitShard(TextScanner& text, const DataFileContents& contents,
                    SplitShardText& read) {
  absl::string_view name, placement;
  if (!text.Text(kMaxTensorNameBytes, name) ||
      !ReadTensorText(text, read.tensor)) {
    return false;
  }
  read.tensor.name = std::string(name);
  const size_t rank = read.tensor.sizes.size();
  if (!text.Consume('@') || !text.Numbers(rank, read.shard.offsets) ||
      !text.Consume('+') || !text.Numbers(rank, read.shard.sizes) ||
      !IsInside(read.shard, read.tensor.sizes) || IsEmpty(read.shard) ||
      !text.Consume('*') || !text.Text(kMaxPlacementBytes, placement) ||
      !text.Consume('=')) {
    return false;
  }
  read.placement = std::string(placement);
  const int64_t bytes =
      Volume(read.shard) * static_cast<int64_t>(SizeOf(read.tensor.dtype));
  return ReadExtents(text, bytes, contents.chunk_bytes,
                     static_cast<int64_t>(contents.earlier_files.size()),
                     read.shard.extents) &&
         text.Consume(';');
}

absl::Status ReadEarlierFiles(absl::string_view text,
                              std::vector<std::string>& files) {
  TextScanner scanner(text);
  absl::flat_hash_set<absl::string_view> known;
  while (!scanner.done()) {
    absl::string_view name;
    if (!scanner.Before(';', name) || !CheckFileName(name).ok() ||
        !known.insert(name).second) {
      return MalformedMetadata(kEarlierFilesKey);
    }
    files.emplace_back(name);
  }
  return absl::OkStatus();
}

}  // namespace

std::string TensorText(const DataFileTensor& tensor) {
  return absl::StrCat(
      Name(tensor.dtype), "[", absl::StrJoin(tensor.sizes, ","), "]",
      tensor.requires_grad ? 1 : 0, ",",
      tensor.kind == SavedLayoutKind::kChunk ? 1 + tensor.chunk_dim : 0);
}

bool ReadTensorText(TextScanner& text, DataFileTensor& tensor) {
  absl::string_view dtype;
  if (!text.Before('[', dtype)) return false;
  const absl::StatusOr<DType> parsed = ParseDType(dtype);
  if (!parsed.ok()) return false;
  tensor.dtype = *parsed;
  int64_t number;
  if (!text.Consume(']')) {
    do {
      if (tensor.sizes.size() == kMaxRank || !text.Number(number)) return false;
      tensor.sizes.push_back(number);
    } while (text.Consume(','));
    if (!text.Consume(']')) return false;
  }
  if (!NumBytes(tensor.sizes, tensor.dtype).ok()) return false;
  if (!text.Number(number) || number > 1) return false;
  tensor.requires_grad = number == 1;
  if (!text.Consume(',') || !text.Number(number) ||
      number > static_cast<int64_t>(tensor.sizes.size())) {
    return false;
  }
  tensor.kind =
      number > 0 ? SavedLayoutKind::kChunk : SavedLayoutKind::kEnumerable;
  tensor.chunk_dim = number > 0 ? static_cast<int32_t>(number - 1) : 0;
  return true;
}

void AppendSplitShards(const DataFileContents& contents,
                       std::map<std::string, std::string>& metadata) {
  if (contents.split.empty()) return;
  std::string files, shards;
  for (const std::string& name : contents.earlier_files) {
    absl::StrAppend(&files, name, ";");
  }
  for (const SplitShard& shard : contents.split) {
    const DataFileTensor& tensor = contents.tensors[shard.tensor];
    const std::string& placement = contents.placements[shard.placement];
    absl::StrAppend(&shards, tensor.name.size(), ":", tensor.name,
                    TensorText(tensor), "@", absl::StrJoin(shard.offsets, ","),
                    "+", absl::StrJoin(shard.sizes, ","), "*");
    absl::StrAppend(&shards, placement.size(), ":", placement, "=",
                    ExtentsText(shard.extents, contents.chunk_bytes), ";");
  }
  metadata[kEarlierFilesKey] = std::move(files);
  metadata[kSplitShardsKey] = std::move(shards);
}

absl::StatusOr<std::vector<SplitShardText>> ReadSplitShards(
    const std::map<std::string, std::string>& metadata,
    DataFileContents& contents) {
  std::vector<SplitShardText> read;
  const auto files = metadata.find(kEarlierFilesKey);
  const auto shards = metadata.find(kSplitShardsKey);
  if (files == metadata.end() && shards == metadata.end()) return read;
  if (files == metadata.end()) return MalformedMetadata(kEarlierFilesKey);
  if (shards == metadata.end() || shards->second.empty()) {
    return MalformedMetadata(kSplitShardsKey);
  }
  SHERD_RETURN_IF_ERROR(
      ReadEarlierFiles(files->second, contents.earlier_files));
  TextScanner scanner(shards->second);
  while (!scanner.done()) {
    if (!ReadSplitShard(scanner, contents, read.emplace_back())) {
      return MalformedMetadata(kSplitShardsKey);
    }
    if (read.size() == 1) continue;
    const SplitShardText& before = read[read.size() - 2];
    const SplitShardText& last = read.back();
    if (std::tie(before.tensor.name, before.shard.offsets) >=
        std::tie(last.tensor.name, last.shard.offsets)) {
      return MalformedMetadata(kSplitShardsKey);
    }
  }
  return read;
}

absl::Status MalformedMetadata(const char* key) {
  return absl::DataLossError(
      absl::StrCat("the metadata has a malformed ", key));
}

}  // namespace sherd
