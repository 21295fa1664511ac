#include "sherd/serialization/checkpoint/load/piece_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/types/element_cast.h"
#include "sherd/serialization/safetensors/device_blocks.h"

namespace sherd {
namespace {

// Scattered data goes through a buffer that stays in the cache, and the CRC of
// a block is computed while the block is there.
constexpr int64_t kStagingBytes = 256 << 10;
// From here on a read of its own costs less than another copy.
constexpr int64_t kLongPiece = 4 << 10;
constexpr int64_t kPageBytes = 4096;
// Up to here the system call of a read costs more than to wait for others; so
// much of them is still in the cache when its CRC is computed.
constexpr int64_t kMostDirect = 64 << 10;
constexpr int64_t kMostTogether = 256 << 10;
// From here on several reads in flight make up for asking the page cache which
// of them it has; and so much is asked for at once.
constexpr int64_t kManyBytes = int64_t{1} << 20;
constexpr int64_t kMostAtOnce = int64_t{64} << 20;

// The longest piece that is read as elements of `wanted` through staging: it
// and what it is made of have room.
int64_t MostScattered(DType saved, DType wanted) {
  const auto from = static_cast<int64_t>(SizeOf(saved));
  const auto to = static_cast<int64_t>(SizeOf(wanted));
  return kStagingBytes / std::max(from, to) * to;
}

}  // namespace

absl::Status PieceReader::ReadRun(const ShardSource& source, int64_t offset,
                                  absl::Span<std::byte> buffer) {
  int64_t before = 0;
  ExtentOfShard place = {.tensor = source.tensor, .shard = source.shard};
  for (const SavedExtent& extent : source.extents) {
    place.extent = extent;
    const int64_t end = before + extent.bytes;
    while (offset < end && !buffer.empty()) {
      const auto part = buffer.first(static_cast<size_t>(std::min(
          {static_cast<int64_t>(buffer.size()), kMostAtOnce, end - offset})));
      SHERD_RETURN_IF_ERROR(ReadInExtent(place, offset - before, part));
      offset += static_cast<int64_t>(part.size());
      buffer.remove_prefix(part.size());
    }
    before = end;
    place.chunks_before += NumChunks(extent.bytes, reader_.chunk_bytes());
  }
  return absl::OkStatus();
}

// In blocks that end where chunks do, so that each chunk is checked as soon as
// it has been read, in whatever order they come.
absl::Status PieceReader::ReadInExtent(const ExtentOfShard& place,
                                       int64_t offset,
                                       absl::Span<std::byte> buffer) {
  const SavedExtent& extent = place.extent;
  const int64_t chunk = reader_.chunk_bytes();
  const int64_t most =
      kStagingBytes - kStagingBytes % std::min(chunk, kStagingBytes);
  const auto bytes = static_cast<int64_t>(buffer.size());
  blocks_.clear();
  for (int64_t done = 0; done < bytes;) {
    const int64_t n = std::min(bytes - done, most - (offset + done) % most);
    blocks_.push_back(
        {extent.data_offset + offset + done,
         buffer.subspan(static_cast<size_t>(done), static_cast<size_t>(n))});
    done += n;
  }
  const auto add = [&](size_t i) {
    const absl::Span<std::byte> block = blocks_[i].buffer;
    return ledger_.Add(place, offset + (block.data() - buffer.data()), block);
  };
  if (bytes >= kManyBytes) {
    return reader_.ReadMany(last_file_, extent.file, absl::MakeSpan(blocks_),
                            add);
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    SHERD_RETURN_IF_ERROR(reader_.Read(last_file_, extent.file,
                                       blocks_[i].offset, blocks_[i].buffer));
    SHERD_RETURN_IF_ERROR(add(i));
  }
  return absl::OkStatus();
}

absl::Status PieceReader::ReadBox(const ShardSource& source,
                                  absl::Span<const int64_t> offsets,
                                  const Tensor& destination) {
  if (destination.numel() == 0) return absl::OkStatus();
  const BoxInArray box = BoxOf(source.sizes, offsets, destination);
  if (!destination.device().is_cpu()) {
    return ForEachDevicePiece(box, [&](const BoxPiece& piece) -> absl::Status {
      SHERD_ASSIGN_OR_RETURN(
          const absl::Span<std::byte> block,
          device_.Take(destination.device(), piece, box.element_size));
      return ReadContiguous(source, piece.offset, destination.dtype(), block);
    });
  }
  return ForEachPiece(box, MostScattered(source.dtype, destination.dtype()),
                      [&](const BoxPiece& piece) {
                        return ReadPiece(source, piece, destination.dtype());
                      });
}

absl::Status PieceReader::ReadContiguous(const ShardSource& source,
                                         int64_t offset, DType dtype,
                                         absl::Span<std::byte> buffer) {
  return ReadPiece(source,
                   {.offset = offset,
                    .bytes = static_cast<int64_t>(buffer.size()),
                    .data = buffer.data()},
                   dtype);
}

absl::Status PieceReader::ReadPiece(const ShardSource& source,
                                    const BoxPiece& piece, DType dtype) {
  const bool converts = dtype != source.dtype;
  if (!converts && piece.contiguous && piece.bytes >= kLongPiece) {
    if (piece.bytes <= kMostDirect) return ReadDirect(source, piece);
    SHERD_RETURN_IF_ERROR(FlushReads());
    return ReadRun(
        source, piece.offset,
        absl::MakeSpan(piece.data, static_cast<size_t>(piece.bytes)));
  }
  const int64_t most = MostScattered(source.dtype, dtype);
  if (piece.bytes <= most) return ReadShort(source, piece, dtype);
  for (int64_t done = 0; done < piece.bytes; done += most) {
    SHERD_RETURN_IF_ERROR(
        ReadShort(source,
                  {.offset = piece.offset + done,
                   .bytes = std::min(most, piece.bytes - done),
                   .data = piece.data + done},
                  dtype));
  }
  return absl::OkStatus();
}

bool PieceReader::FindExtent(const ShardSource& source, int64_t bytes,
                             ExtentOfShard& place, int64_t& offset) const {
  int64_t before = 0;
  int64_t chunks = 0;
  for (const SavedExtent& extent : source.extents) {
    if (offset - before >= extent.bytes) {
      before += extent.bytes;
      chunks += NumChunks(extent.bytes, reader_.chunk_bytes());
      continue;
    }
    if (offset - before + bytes > extent.bytes) return false;
    place.chunks_before = chunks;
    place.extent = extent;
    offset -= before;
    return true;
  }
  return false;
}

absl::Status PieceReader::ReadDirect(const ShardSource& source,
                                     const BoxPiece& piece) {
  // What is staged would go on behind this piece, and read it a second time.
  SHERD_RETURN_IF_ERROR(FlushStaged());
  const auto buffer =
      absl::MakeSpan(piece.data, static_cast<size_t>(piece.bytes));
  ExtentOfShard place = {.tensor = source.tensor, .shard = source.shard};
  int64_t offset = piece.offset;
  if (!FindExtent(source, piece.bytes, place, offset)) {
    // It crosses the end of one.
    SHERD_RETURN_IF_ERROR(FlushReads());
    return ReadRun(source, piece.offset, buffer);
  }
  const int64_t begin = place.extent.data_offset + offset;
  if (!direct_.empty() &&
      (direct_places_[0].place.extent.file != place.extent.file ||
       direct_[0].offset + direct_bytes_ != begin ||
       direct_bytes_ + piece.bytes > kMostTogether)) {
    SHERD_RETURN_IF_ERROR(FlushDirect());
  }
  direct_.push_back({begin, buffer});
  direct_places_.push_back({place, offset});
  direct_bytes_ += piece.bytes;
  return absl::OkStatus();
}

absl::Status PieceReader::ReadShort(const ShardSource& source,
                                    const BoxPiece& piece, DType dtype) {
  const auto saved_size = static_cast<int64_t>(SizeOf(source.dtype));
  const auto size = static_cast<int64_t>(SizeOf(dtype));
  Waiting waiting = {.place = {.tensor = source.tensor, .shard = source.shard},
                     .offset = piece.offset / size * saved_size,
                     .bytes = piece.bytes / size * saved_size,
                     .data = piece.data,
                     .from = source.dtype,
                     .to = dtype};
  if (!piece.contiguous) {
    waiting.sizes.assign(piece.sizes.begin(), piece.sizes.end());
    waiting.strides.assign(piece.strides.begin(), piece.strides.end());
  }
  if (!FindExtent(source, waiting.bytes, waiting.place, waiting.offset)) {
    // It crosses the end of one.
    SHERD_RETURN_IF_ERROR(FlushReads());
    staging_.resize(kStagingBytes);
    SHERD_RETURN_IF_ERROR(ReadRun(
        source, waiting.offset,
        absl::MakeSpan(staging_.data(), static_cast<size_t>(waiting.bytes))));
    Scatter(waiting, staging_.data());
    return absl::OkStatus();
  }
  const SavedExtent& extent = waiting.place.extent;
  const int64_t begin = extent.data_offset + waiting.offset;
  if (!Joins(extent, begin, waiting.bytes)) {
    SHERD_RETURN_IF_ERROR(FlushStaged());
    file_ = extent.file;
    begin_ = begin;
  } else {
    needless_pages_ +=
        std::max<int64_t>(begin / kPageBytes - (end_ - 1) / kPageBytes - 1, 0);
  }
  end_ = begin + waiting.bytes;
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
  size_t bytes = static_cast<size_t>(piece.bytes);
  if (piece.from != piece.to) {
    from = Convert(piece, from);
    bytes = bytes / SizeOf(piece.from) * SizeOf(piece.to);
  }
  if (piece.sizes.empty()) {
    std::memcpy(piece.data, from, bytes);
    return;
  }
  StridedCopy(piece.data, piece.strides, from, ContiguousStrides(piece.sizes),
              piece.sizes, SizeOf(piece.to));
}

const std::byte* PieceReader::Convert(const Waiting& piece,
                                      const std::byte* from) {
  const size_t count = static_cast<size_t>(piece.bytes) / SizeOf(piece.from);
  saved_.resize(kStagingBytes);
  converted_.resize(kStagingBytes);
  // In a buffer that was read at any offset they may lie unaligned.
  std::memcpy(saved_.data(), from, static_cast<size_t>(piece.bytes));
  CastElements(piece.from, saved_.data(),
               static_cast<int64_t>(SizeOf(piece.from)), piece.to,
               converted_.data(), static_cast<int64_t>(count));
  return converted_.data();
}

absl::Status PieceReader::Flush() {
  SHERD_RETURN_IF_ERROR(FlushReads());
  return device_.Flush();
}

absl::Status PieceReader::FlushReads() {
  SHERD_RETURN_IF_ERROR(FlushDirect());
  return FlushStaged();
}

absl::Status PieceReader::FlushDirect() {
  if (direct_.empty()) return absl::OkStatus();
  const int32_t file = direct_places_[0].place.extent.file;
  const auto add = [this](size_t i) {
    const DirectPlace& piece = direct_places_[i];
    return ledger_.Add(piece.place, piece.offset, direct_[i].buffer);
  };
  if (direct_.size() == 1) {
    SHERD_RETURN_IF_ERROR(
        reader_.Read(last_file_, file, direct_[0].offset, direct_[0].buffer));
    SHERD_RETURN_IF_ERROR(add(0));
  } else {
    SHERD_RETURN_IF_ERROR(
        reader_.ReadMany(last_file_, file, absl::MakeSpan(direct_), add));
  }
  direct_.clear();
  direct_places_.clear();
  direct_bytes_ = 0;
  return absl::OkStatus();
}

absl::Status PieceReader::FlushStaged() {
  if (waiting_.empty()) return absl::OkStatus();
  staging_.resize(kStagingBytes);
  SHERD_RETURN_IF_ERROR(reader_.Read(
      last_file_, file_, begin_,
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
