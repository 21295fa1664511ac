#include "sherd/serialization/checkpoint/data_file_check.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/tensor_fingerprint.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

constexpr absl::string_view kMetadataPrefix = "sherd_";

absl::Span<std::byte> MutableBytes(std::string& text) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size());
}

// Reads the chunks of one shard, or of a part of one, and compares them with
// their CRCs; returns what it adds to the fingerprint.
absl::StatusOr<uint32_t> CheckShard(
    File& file, int64_t data_begin, const DataFileContents& contents,
    size_t index, const SavedExtent& extent, absl::Span<const uint32_t> crcs,
    std::string& buffer, const std::function<absl::Status()>& after_read) {
  const DataFileShard& shard = contents.shards[index];
  const DataFileTensor& tensor = contents.tensors[shard.tensor];
  BoxFingerprint fingerprint(tensor.sizes, shard, SizeOf(tensor.dtype));
  fingerprint.Skip(shard.part_begin);
  const int64_t chunks = NumChunks(extent.bytes, contents.chunk_bytes);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t from = chunk * contents.chunk_bytes;
    const int64_t bytes = std::min(contents.chunk_bytes, extent.bytes - from);
    const int64_t begin = data_begin + extent.data_offset + from;
    buffer.resize(static_cast<size_t>(bytes));
    SHERD_RETURN_IF_ERROR(file.ReadAt(begin, MutableBytes(buffer)));
    if (after_read != nullptr) SHERD_RETURN_IF_ERROR(after_read());
    const uint32_t crc = Crc32c(AsBytes(buffer));
    const uint32_t expected = crcs[extent.first_chunk + chunk];
    if (crc != expected) {
      return absl::DataLossError(
          absl::StrCat(file.path(), ": tensor ", Quoted(tensor.name),
                       " is damaged, or its checksum in ", Quoted(kCrcTableKey),
                       ": the bytes from offset ", begin, " to ", begin + bytes,
                       " have the CRC-32C ", absl::Hex(crc, absl::kZeroPad8),
                       ", expected ", absl::Hex(expected, absl::kZeroPad8)));
    }
    if (fingerprint.contiguous()) {
      fingerprint.AddLinear(LinearFromCrc32c(crc, bytes), bytes);
    } else {
      fingerprint.Add(AsBytes(buffer));
    }
  }
  return fingerprint.Take();
}

}  // namespace

bool IsDataFile(const SafetensorsHeader& header) {
  if (!header.entries.empty() && header.entries.back().name == kCrcTableKey) {
    return true;
  }
  // Files of version 1 have sherd_save_id alone.
  return std::count_if(header.metadata.begin(), header.metadata.end(),
                       [](const auto& item) {
                         return absl::StartsWith(item.first, kMetadataPrefix);
                       }) > 1;
}

absl::StatusOr<std::string> ReadHeaderChecked(File& file, int64_t data_begin,
                                              uint32_t crc32c) {
  if (data_begin < 8 || data_begin > 8 + kMaxSafetensorsHeaderBytes) {
    return absl::DataLossError(absl::StrCat(
        file.path(), ": the manifest says that the data begins at ",
        data_begin));
  }
  std::string front(static_cast<size_t>(data_begin), '\0');
  SHERD_RETURN_IF_ERROR(file.ReadAt(0, MutableBytes(front)));
  if (const uint32_t crc = Crc32c(AsBytes(front)); crc != crc32c) {
    return absl::DataLossError(absl::StrCat(
        file.path(), ": the header is damaged: the bytes from offset 0 to ",
        front.size(), " have the CRC-32C ", absl::Hex(crc, absl::kZeroPad8),
        ", expected ", absl::Hex(crc32c, absl::kZeroPad8)));
  }
  const uint64_t length = ReadLittleEndian<uint64_t>(front);
  if (length != front.size() - 8) {
    return absl::DataLossError(
        absl::StrCat(file.path(), ": the header claims at offset 0 to have ",
                     length, " bytes, the manifest says ", front.size() - 8));
  }
  return front;
}

absl::StatusOr<CheckedDataFile> CheckDataFile(
    FileSystem& files, const std::string& path,
    const std::function<absl::Status()>& after_read) {
  SHERD_ASSIGN_OR_RETURN(const SafetensorsFile opened,
                         SafetensorsFile::Open(files, path));
  CheckedDataFile checked;
  SHERD_ASSIGN_OR_RETURN(
      checked.contents,
      ParseDataFileHeader({opened.entries(), opened.metadata()}, path));
  const DataFileContents& contents = checked.contents;
  int64_t chunks = 0;
  for (size_t i = 0; i + 1 < opened.entries().size(); ++i) {
    const SafetensorsEntry& entry = opened.entries()[i];
    checked.extents.push_back({.data_offset = entry.begin,
                               .bytes = entry.nbytes(),
                               .first_chunk = 1 + chunks});
    chunks += NumChunks(entry.nbytes(), contents.chunk_bytes);
  }
  checked.file = {.name = path.substr(path.rfind('/') + 1),
                  .size = opened.size(),
                  .data_begin = opened.data_begin(),
                  .chunks = chunks};
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                         files.OpenForRead(path));
  std::string table(static_cast<size_t>(CrcTableBytes(chunks)), '\0');
  SHERD_RETURN_IF_ERROR(
      file->ReadAt(opened.size() - CrcTableBytes(chunks), MutableBytes(table)));
  checked.file.crc32c = Crc32c(AsBytes(table));
  SHERD_ASSIGN_OR_RETURN(const std::vector<uint32_t> crcs,
                         ReadCrcTable(*file, checked.file));
  SHERD_RETURN_IF_ERROR(
      ReadHeaderChecked(*file, opened.data_begin(), crcs[0]).status());
  std::string buffer;
  for (size_t i = 0; i < contents.shards.size(); ++i) {
    SHERD_ASSIGN_OR_RETURN(
        checked.fingerprints.emplace_back(),
        CheckShard(*file, opened.data_begin(), contents, i, checked.extents[i],
                   crcs, buffer, after_read));
  }
  return checked;
}

}  // namespace sherd
