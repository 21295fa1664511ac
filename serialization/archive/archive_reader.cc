#include "sherd/serialization/archive/archive_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/archive/state_codec.h"
#include "sherd/serialization/safetensors/box_pieces.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/device_blocks.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd::internal {
namespace {

using Bytes = absl::Span<const std::byte>;

absl::Span<std::byte> Writable(std::string& bytes) {
  return {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()};
}

absl::Status WrongSize(int64_t found, absl::string_view expected) {
  return absl::DataLossError(absl::StrCat("it has ", found, " bytes, expected ",
                                          expected,
                                          ": it was cut short or changed"));
}

absl::Status CheckCrc(absl::string_view what, int64_t offset, Bytes bytes,
                      uint32_t expected) {
  const uint32_t found = Crc32c(bytes);
  if (found == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      what, " of ", bytes.size(), " bytes at offset ", offset,
      " is damaged: its CRC-32C is ", absl::Hex(found, absl::kZeroPad8),
      ", expected ", absl::Hex(expected, absl::kZeroPad8)));
}

}  // namespace

absl::StatusOr<ArchiveReader> ArchiveReader::Open(
    std::shared_ptr<ArchiveSource> source) {
  ArchiveReader reader(std::move(source));
  SHERD_RETURN_IF_ERROR(reader.ReadFront());
  return reader;
}

absl::Status ArchiveReader::ReadFront() {
  SHERD_ASSIGN_OR_RETURN(size_, source_->Size());
  std::string front(static_cast<size_t>(std::min(size_, kArchivePrefixBytes)),
                    '\0');
  SHERD_RETURN_IF_ERROR(source_->ReadAt(0, Writable(front)));
  SHERD_ASSIGN_OR_RETURN(const int64_t length, ParseArchivePrefix(front));
  front_bytes_ = kArchivePrefixBytes + length + kCrcBytes;
  if (front_bytes_ > size_) {
    return WrongSize(size_, absl::StrCat(front_bytes_, " or more"));
  }
  front.resize(static_cast<size_t>(front_bytes_));
  SHERD_RETURN_IF_ERROR(source_->ReadAt(
      kArchivePrefixBytes, Writable(front).subspan(kArchivePrefixBytes)));
  const Bytes checked =
      Writable(front).first(static_cast<size_t>(kArchivePrefixBytes + length));
  front_crc_ = ReadLittleEndian<uint32_t>(
      absl::string_view(front).substr(checked.size()));
  SHERD_RETURN_IF_ERROR(CheckCrc("the message", 0, checked, front_crc_));
  SHERD_ASSIGN_OR_RETURN(
      state_, DecodeState(absl::string_view(front).substr(
                  kArchivePrefixBytes, static_cast<size_t>(length))));
  return absl::OkStatus();
}

absl::Status ArchiveReader::ReadTable() {
  std::optional<ArchiveLayout> layout =
      LayOutArchive(front_bytes_, state_.blocks, state_.chunk_bytes);
  if (!layout) return WrongSize(size_, "2^63 or more by its message");
  if (layout->size != size_) {
    return WrongSize(size_, absl::StrCat(layout->size, " by its message"));
  }
  layout_ = *std::move(layout);
  table_.resize(static_cast<size_t>(layout_.size - layout_.table));
  SHERD_RETURN_IF_ERROR(source_->ReadAt(layout_.table, Writable(table_)));
  const Bytes checked = Writable(table_).first(table_.size() - kCrcBytes);
  return CheckCrc("the table of CRCs", layout_.table, checked,
                  ReadLittleEndian<uint32_t>(
                      absl::string_view(table_).substr(checked.size())));
}

absl::Status ArchiveReader::CheckPadding(size_t block) const {
  const int64_t begin =
      block == 0 ? front_bytes_
                 : layout_.offsets[block - 1] + state_.blocks[block - 1];
  std::string padding(static_cast<size_t>(layout_.offsets[block] - begin),
                      '\0');
  if (padding.empty()) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(source_->ReadAt(begin, Writable(padding)));
  const size_t found = padding.find_first_not_of('\0');
  if (found == std::string::npos) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the byte before a block at offset ",
                                          begin + static_cast<int64_t>(found),
                                          " is not 0: damaged"));
}

absl::Status ArchiveReader::CheckChunk(size_t block, int64_t chunk,
                                       Bytes bytes) const {
  const int64_t entry = layout_.first_chunks[block] + chunk;
  return CheckCrc("the chunk",
                  layout_.offsets[block] + chunk * state_.chunk_bytes, bytes,
                  ReadLittleEndian<uint32_t>(absl::string_view(table_).substr(
                      static_cast<size_t>(entry * kCrcBytes))));
}

absl::Status ArchiveReader::ReadChunks(
    size_t block,
    absl::FunctionRef<absl::Span<std::byte>(int64_t offset, int64_t bytes)>
        place) const {
  SHERD_RETURN_IF_ERROR(CheckPadding(block));
  const int64_t total = state_.blocks[block];
  for (int64_t begin = 0, chunk = 0; begin < total;
       begin += state_.chunk_bytes, ++chunk) {
    const absl::Span<std::byte> memory =
        place(begin, std::min(state_.chunk_bytes, total - begin));
    SHERD_RETURN_IF_ERROR(
        source_->ReadAt(layout_.offsets[block] + begin, memory));
    SHERD_RETURN_IF_ERROR(CheckChunk(block, chunk, memory));
  }
  return absl::OkStatus();
}

absl::Status ArchiveReader::ReadBlock(size_t block, Tensor bytes) const {
  auto* const data = static_cast<std::byte*>(bytes.data());
  if (bytes.device().is_cpu()) {
    return ReadChunks(block, [&](int64_t offset, int64_t length) {
      return absl::MakeSpan(data + offset, static_cast<size_t>(length));
    });
  }
  SHERD_RETURN_IF_ERROR(CheckPadding(block));
  return ReadDeviceBlock(block, bytes);
}

absl::Status ArchiveReader::ReadDeviceBlock(size_t block,
                                            const Tensor& bytes) const {
  const Dims zeros(1, 0);
  const BoxInArray box = BoxOf(bytes.sizes(), zeros, bytes);
  // A chunk is checked whole, but may be in two of the pieces.
  std::vector<std::byte> chunk_bytes;
  int64_t chunk = -1;
  const auto fill = [&](int64_t offset,
                        absl::Span<std::byte> piece) -> absl::Status {
    while (!piece.empty()) {
      const int64_t begin = offset / state_.chunk_bytes * state_.chunk_bytes;
      if (chunk != begin / state_.chunk_bytes) {
        chunk = begin / state_.chunk_bytes;
        chunk_bytes.resize(static_cast<size_t>(
            std::min(state_.chunk_bytes, state_.blocks[block] - begin)));
        SHERD_RETURN_IF_ERROR(source_->ReadAt(layout_.offsets[block] + begin,
                                              absl::MakeSpan(chunk_bytes)));
        SHERD_RETURN_IF_ERROR(CheckChunk(block, chunk, chunk_bytes));
      }
      const size_t skip = static_cast<size_t>(offset - begin);
      const size_t part = std::min(piece.size(), chunk_bytes.size() - skip);
      std::memcpy(piece.data(), chunk_bytes.data() + skip, part);
      piece.remove_prefix(part);
      offset += static_cast<int64_t>(part);
    }
    return absl::OkStatus();
  };
  return WriteDeviceBox(box, bytes.device(), fill);
}

absl::Status ArchiveReader::VerifyBlock(size_t block) const {
  std::vector<std::byte> buffer;
  return ReadChunks(block, [&](int64_t, int64_t length) {
    buffer.resize(static_cast<size_t>(length));
    return absl::MakeSpan(buffer);
  });
}

absl::StatusOr<std::shared_ptr<Storage>> ArchiveReader::Map(
    const std::string& path) const {
  SHERD_ASSIGN_OR_RETURN(
      std::shared_ptr<Storage> file,
      Storage::MapFile(path, 0, static_cast<uint64_t>(layout_.size)));
  const auto* const data = static_cast<const std::byte*>(file->data());
  const Bytes front(data, static_cast<size_t>(front_bytes_ - kCrcBytes));
  if (Crc32c(front) == front_crc_ &&
      std::memcmp(data + layout_.table, table_.data(), table_.size()) == 0) {
    return file;
  }
  return absl::DataLossError(
      "another file has replaced it since it was opened; open it again");
}

}  // namespace sherd::internal
