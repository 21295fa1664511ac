#include "sherd/serialization/checkpoint/extent_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/manifest/data_file.h"

namespace sherd {
namespace {

// A rank may need pieces of very many files; descriptors are scarce.
constexpr size_t kMaxOpenFiles = 128;
// So many stay open of those of which only the size was asked.
constexpr size_t kMaxOpenUnread = 16;
// Tables of CRCs in memory: 64 MiB, but always that of the file being read.
constexpr size_t kMaxTableValues = size_t{16} << 20;
// Of so many lost files the error names a tensor: each takes a look at all of
// the manifest.
constexpr size_t kMaxNamed = 3;

// Calls `visit` with each extent of a tensor.
template <typename Visit>
void ForEachExtent(const ManifestTensor& tensor, int64_t chunk_bytes,
                   Visit visit) {
  for (int64_t shard = 0; shard < tensor.num_shards(); ++shard) {
    for (const SavedExtent& extent :
         tensor.PlaceOf(shard, chunk_bytes).extents) {
      visit(extent);
    }
  }
}

}  // namespace

absl::Status ExtentReader::Note(int32_t index, absl::Status status) {
  // Other errors may pass.
  if (absl::IsDataLoss(status)) damaged_.emplace(index, status);
  return status;
}

absl::StatusOr<ExtentReader::OpenFile*> ExtentReader::FileAt(int32_t index) {
  const auto it = open_.find(index);
  if (it != open_.end()) {
    it->second.last_use = ++uses_;
    return &it->second;
  }
  // To find what such a file lacks takes all of the manifest.
  const auto damaged = damaged_.find(index);
  if (damaged != damaged_.end()) return damaged->second;
  absl::StatusOr<OpenFile*> file = OpenNow(index);
  if (!file.ok()) return Note(index, file.status());
  return file;
}

absl::StatusOr<ExtentReader::OpenFile*> ExtentReader::OpenNow(int32_t index) {
  SHERD_ASSIGN_OR_RETURN(const ManifestFile* const info,
                         manifest_.FileAt(index));
  absl::StatusOr<std::unique_ptr<File>> file =
      files_.OpenForRead(JoinPath(manifest_.directory(), info->name));
  if (absl::IsNotFound(file.status())) return Missing(index, *info);
  if (absl::IsInvalidArgument(file.status())) {
    return NotAFile(index, *info, file.status());
  }
  SHERD_RETURN_IF_ERROR(file.status());
  SHERD_ASSIGN_OR_RETURN(const int64_t size, (*file)->Size());
  if (size != info->size) return WrongSize(index, *info, size);
  if (after_read_ != nullptr) SHERD_RETURN_IF_ERROR(after_read_());
  right_size_.emplace(index, info);
  if (open_.size() >= kMaxOpenFiles) {
    open_.erase(std::min_element(open_.begin(), open_.end(),
                                 [](const auto& a, const auto& b) {
                                   return a.second.last_use < b.second.last_use;
                                 }));
  }
  OpenFile& opened = open_[index];
  opened.file = *std::move(file);
  opened.data_begin = info->data_begin;
  opened.last_use = ++uses_;
  return &opened;
}

absl::Status ExtentReader::Open(int32_t file) {
  absl::MutexLock lock(&mutex_);
  return OpenLocked(file).status();
}

absl::StatusOr<const ManifestFile*> ExtentReader::OpenLocked(int32_t file) {
  const auto damaged = damaged_.find(file);
  if (damaged != damaged_.end()) return damaged->second;
  const auto known = right_size_.find(file);
  if (known != right_size_.end()) return known->second;
  SHERD_RETURN_IF_ERROR(FileAt(file).status());
  if (open_.size() > kMaxOpenUnread) open_.erase(file);
  return right_size_.at(file);
}

absl::Status ExtentReader::Open(const SavedExtent& extent) {
  const ManifestFile* info;
  {
    absl::MutexLock lock(&mutex_);
    SHERD_ASSIGN_OR_RETURN(info, OpenLocked(extent.file));
  }
  // Of version 1 the manifest has been checked as a whole.
  if (manifest_.summary().version == 1) return absl::OkStatus();
  absl::Status status = CheckExtent(extent, *info, chunk_bytes());
  return status.ok() ? status : Annotate(std::move(status), manifest_.path());
}

absl::Status ExtentReader::Read(int32_t file, int64_t offset,
                                absl::Span<std::byte> buffer) {
  LastFile last;
  return Read(last, file, offset, buffer);
}

absl::Status ExtentReader::Find(int32_t index, LastFile& last) {
  if (last.index == index) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  SHERD_ASSIGN_OR_RETURN(const OpenFile* const found, FileAt(index));
  last = {index, found->file, found->data_begin};
  return absl::OkStatus();
}

absl::Status ExtentReader::Read(LastFile& last, int32_t file, int64_t offset,
                                absl::Span<std::byte> buffer) {
  SHERD_RETURN_IF_ERROR(Find(file, last));
  bytes_read_.fetch_add(static_cast<int64_t>(buffer.size()),
                        std::memory_order_relaxed);
  SHERD_RETURN_IF_ERROR(last.file->ReadAt(last.data_begin + offset, buffer));
  return after_read_ == nullptr ? absl::OkStatus() : after_read_();
}

absl::Status ExtentReader::ReadMany(
    LastFile& last, int32_t file, absl::Span<FileRead> reads,
    absl::FunctionRef<absl::Status(size_t)> done) {
  SHERD_RETURN_IF_ERROR(Find(file, last));
  int64_t bytes = 0;
  for (FileRead& read : reads) {
    read.offset += last.data_begin;
    bytes += static_cast<int64_t>(read.buffer.size());
  }
  bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
  return last.file->ReadMany(reads, [&](size_t i) -> absl::Status {
    SHERD_RETURN_IF_ERROR(done(i));
    return after_read_ == nullptr ? absl::OkStatus() : after_read_();
  });
}

absl::Status ExtentReader::Missing(int32_t index,
                                   const ManifestFile& info) const {
  return absl::DataLossError(absl::StrCat(
      JoinPath(manifest_.directory(), info.name), " is missing",
      FirstLost(index, info, 0),
      "; the checkpoint is incomplete, or a save has replaced it since its "
      "manifest was read: open it again to see"));
}

absl::Status ExtentReader::WrongSize(int32_t index, const ManifestFile& info,
                                     int64_t size) const {
  return absl::DataLossError(absl::StrCat(
      JoinPath(manifest_.directory(), info.name), " has ", size,
      " bytes, expected ", info.size, FirstLost(index, info, size)));
}

absl::Status ExtentReader::NotAFile(int32_t index, const ManifestFile& info,
                                    const absl::Status& status) const {
  return absl::DataLossError(
      absl::StrCat(status.message(), "; expected a data file of the checkpoint",
                   FirstLost(index, info, 0)));
}

std::string ExtentReader::FirstLost(int32_t index, const ManifestFile& info,
                                    int64_t size) const {
  if (damaged_.size() >= kMaxNamed) return "";
  const absl::StatusOr<Manifest> manifest = manifest_.ReadAll();
  if (!manifest.ok()) return "";
  // The tensor that the file ends in, or would begin with.
  struct Lost {
    const ManifestTensor* tensor;
    int64_t offset;
  };
  std::optional<Lost> cut, first;
  const auto add = [](std::optional<Lost>& lost, Lost other) {
    if (!lost || other.offset < lost->offset) lost = other;
  };
  for (const ManifestTensor& tensor : manifest->tensors) {
    ForEachExtent(tensor, chunk_bytes(), [&](const SavedExtent& extent) {
      if (extent.file != index) return;
      const int64_t offset = info.data_begin + extent.data_offset;
      add(first, {&tensor, offset});
      if (offset + extent.bytes > size) add(cut, {&tensor, offset});
    });
  }
  const std::optional<Lost>& lost = cut ? cut : first;
  if (!lost) return "";
  return absl::StrCat("; it has tensor ", Quoted(lost->tensor->name),
                      " at offset ", lost->offset);
}

absl::StatusOr<absl::Span<const uint32_t>> ExtentReader::TableOf(
    int32_t index) {
  const auto it = tables_.find(index);
  if (it != tables_.end()) return absl::MakeConstSpan(it->second);
  SHERD_ASSIGN_OR_RETURN(OpenFile* const file, FileAt(index));
  SHERD_ASSIGN_OR_RETURN(const ManifestFile* const info,
                         manifest_.FileAt(index));
  const auto damaged = damaged_.find(index);
  if (damaged != damaged_.end()) return damaged->second;
  absl::StatusOr<std::vector<uint32_t>> table =
      ReadCrcTable(*file->file, *info);
  if (!table.ok()) return Note(index, table.status());
  bytes_read_ += CrcTableBytes(info->chunks);
  // Files are read in ascending order, but for few of them.
  while (!tables_.empty() && table_values_ + table->size() > kMaxTableValues) {
    table_values_ -= tables_.begin()->second.size();
    tables_.erase(tables_.begin());
  }
  table_values_ += table->size();
  return absl::MakeConstSpan(tables_[index] = *std::move(table));
}

absl::StatusOr<uint32_t> ExtentReader::ChunkCrc32c(const SavedExtent& extent,
                                                   int64_t chunk) {
  absl::MutexLock lock(&mutex_);
  absl::Span<const uint32_t> crcs = manifest_.chunk_crc32c();
  if (manifest_.summary().version > 1) {
    SHERD_ASSIGN_OR_RETURN(crcs, TableOf(extent.file));
  }
  const int64_t index = extent.first_chunk + chunk;
  if (index < 0 || index >= static_cast<int64_t>(crcs.size())) {
    return absl::DataLossError(absl::StrCat(manifest_.path(),
                                            ": an extent has chunk ", index,
                                            " of ", crcs.size()));
  }
  return crcs[static_cast<size_t>(index)];
}

int64_t ExtentReader::ChunkLength(const SavedExtent& extent,
                                  int64_t chunk) const {
  return std::min(chunk_bytes(), extent.bytes - chunk * chunk_bytes());
}

absl::Status ExtentReader::WrongChunk(absl::string_view tensor,
                                      const SavedExtent& extent, int64_t chunk,
                                      uint32_t actual,
                                      uint32_t expected) const {
  SHERD_ASSIGN_OR_RETURN(const ManifestFile* const info,
                         manifest_.FileAt(extent.file));
  const int64_t begin =
      info->data_begin + extent.data_offset + chunk * chunk_bytes();
  return absl::DataLossError(
      absl::StrCat(JoinPath(manifest_.directory(), info->name), ": tensor ",
                   Quoted(tensor), " is damaged: the bytes from offset ", begin,
                   " to ", begin + ChunkLength(extent, chunk),
                   " have the CRC-32C ", absl::Hex(actual, absl::kZeroPad8),
                   ", expected ", absl::Hex(expected, absl::kZeroPad8)));
}

}  // namespace sherd
