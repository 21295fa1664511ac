#include "sherd/serialization/checkpoint/load/piece_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/serialization/safetensors/device_blocks.h"

namespace sherd {
namespace {

// Scattered data goes through a buffer that stays in the cache, and the CRC of
// a block is computed while the block is there.
constexpr int64_t kStagingBytes = 256 << 10;
// From here on a read of its own costs less than another copy.
constexpr int64_t kLongPiece = 16 << 10;
constexpr int64_t kPageBytes = 4096;

}  // namespace

absl::Status PieceReader::ReadRun(const ShardSource& source, int64_t offset,
                                  absl::Span<std::byte> buffer) {
  int64_t before = 0;
  ExtentOfShard place = {.tensor = source.tensor, .shard = source.shard};
  for (const SavedExtent& extent : source.extents) {
    place.extent = extent;
    const int64_t end = before + extent.bytes;
    while (offset < end && !buffer.empty()) {
      const auto block = buffer.first(static_cast<size_t>(std::min(
          {static_cast<int64_t>(buffer.size()), kStagingBytes, end - offset})));
      const int64_t at = offset - before;
      SHERD_RETURN_IF_ERROR(
          reader_.Read(extent.file, extent.data_offset + at, block));
      SHERD_RETURN_IF_ERROR(ledger_.Add(place, at, block));
      offset += static_cast<int64_t>(block.size());
      buffer.remove_prefix(block.size());
    }
    before = end;
    place.chunks_before += NumChunks(extent.bytes, reader_.chunk_bytes());
  }
  return absl::OkStatus();
}

absl::Status PieceReader::ReadBox(const ShardSource& source,
                                  absl::Span<const int64_t> offsets,
                                  const Tensor& destination) {
  if (destination.numel() == 0) return absl::OkStatus();
  BoxInArray box;
  box.array_sizes = source.sizes;
  box.offsets = offsets;
  box.sizes = destination.sizes();
  box.element_size = destination.element_size();
  box.data =
      const_cast<std::byte*>(static_cast<const std::byte*>(destination.data()));
  box.strides = destination.strides();
  if (!destination.device().is_cpu()) {
    SHERD_RETURN_IF_ERROR(Flush());
    return WriteDeviceBox(box, destination.device(),
                          [&](int64_t offset, absl::Span<std::byte> block) {
                            return ReadRun(source, offset, block);
                          });
  }
  return ForEachPiece(box, kStagingBytes, [&](const BoxPiece& piece) {
    return ReadPiece(source, piece, box.element_size);
  });
}

absl::Status PieceReader::ReadContiguous(const ShardSource& source,
                                         int64_t offset,
                                         absl::Span<std::byte> buffer) {
  return ReadPiece(source,
                   {.offset = offset,
                    .bytes = static_cast<int64_t>(buffer.size()),
                    .data = buffer.data()},
                   1);
}

absl::Status PieceReader::ReadPiece(const ShardSource& source,
                                    const BoxPiece& piece,
                                    size_t element_size) {
  const bool is_long = piece.contiguous && piece.bytes >= kLongPiece;
  if (is_long) {
    SHERD_RETURN_IF_ERROR(Flush());
    return ReadRun(
        source, piece.offset,
        absl::MakeSpan(piece.data, static_cast<size_t>(piece.bytes)));
  }
  Waiting waiting = {.place = {.tensor = source.tensor, .shard = source.shard},
                     .offset = piece.offset,
                     .bytes = piece.bytes,
                     .data = piece.data,
                     .element_size = element_size};
  if (!piece.contiguous) {
    waiting.sizes.assign(piece.sizes.begin(), piece.sizes.end());
    waiting.strides.assign(piece.strides.begin(), piece.strides.end());
  }
  if (source.extents.size() != 1) {
    // It may cross the end of an extent.
    SHERD_RETURN_IF_ERROR(Flush());
    staging_.resize(kStagingBytes);
    SHERD_RETURN_IF_ERROR(ReadRun(
        source, piece.offset,
        absl::MakeSpan(staging_.data(), static_cast<size_t>(piece.bytes))));
    Scatter(waiting, staging_.data());
    return absl::OkStatus();
  }
  const SavedExtent& extent = source.extents.front();
  waiting.place.extent = extent;
  const int64_t begin = extent.data_offset + piece.offset;
  if (!Joins(extent, begin, piece.bytes)) {
    SHERD_RETURN_IF_ERROR(Flush());
    file_ = extent.file;
    begin_ = begin;
  } else {
    needless_pages_ +=
        std::max<int64_t>(begin / kPageBytes - (end_ - 1) / kPageBytes - 1, 0);
  }
  end_ = begin + piece.bytes;
  waiting_.push_back(std::move(waiting));
  return absl::OkStatus();
}

bool PieceReader::Joins(const SavedExtent& extent, int64_t begin,
                        int64_t bytes) const {
  if (waiting_.empty() || extent.file != file_ || begin < end_ ||
      begin + bytes - begin_ > kStagingBytes) {
    return false;
  }
  // Data begins at a page, in files that Sherd writes.
  const int64_t between = begin / kPageBytes - (end_ - 1) / kPageBytes - 1;
  const int64_t pages =
      (begin + bytes - 1) / kPageBytes - begin_ / kPageBytes + 1;
  return between <= 0 || (needless_pages_ + between) * 20 <= pages;
}

void PieceReader::Scatter(const Waiting& piece, const std::byte* from) {
  if (piece.sizes.empty()) {
    std::memcpy(piece.data, from, static_cast<size_t>(piece.bytes));
    return;
  }
  StridedCopy(piece.data, piece.strides, from, ContiguousStrides(piece.sizes),
              piece.sizes, piece.element_size);
}

absl::Status PieceReader::Flush() {
  if (waiting_.empty()) return absl::OkStatus();
  staging_.resize(kStagingBytes);
  SHERD_RETURN_IF_ERROR(reader_.Read(
      file_, begin_,
      absl::MakeSpan(staging_.data(), static_cast<size_t>(end_ - begin_))));
  for (const Waiting& piece : waiting_) {
    const std::byte* const from = staging_.data() +
                                  piece.place.extent.data_offset +
                                  piece.offset - begin_;
    SHERD_RETURN_IF_ERROR(
        ledger_.Add(piece.place, piece.offset,
                    absl::MakeSpan(from, static_cast<size_t>(piece.bytes))));
    Scatter(piece, from);
  }
  waiting_.clear();
  needless_pages_ = 0;
  return absl::OkStatus();
}

}  // namespace sherd
