#include "sherd/serialization/checkpoint/shard_box_reader.h"

#include <algorithm>
#include <cstring>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/safetensors/box_pieces.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/device_blocks.h"

namespace sherd {
namespace {

// Scattered data goes through a buffer that stays in the cache.
constexpr int64_t kStagingBytes = 256 << 10;

}  // namespace

absl::Status ShardBoxReader::ReadBox(const ManifestTensor& tensor,
                                     int64_t shard,
                                     absl::Span<const int64_t> offsets,
                                     Tensor destination) {
  const SavedShardPlace place = tensor.PlaceOf(shard, reader_.chunk_bytes());
  const Box saved = tensor.layout.BoxAt(shard);
  const BoxInArray box = BoxOf(saved.sizes, offsets, destination);
  if (!destination.device().is_cpu()) {
    return WriteDeviceBox(box, destination.device(),
                          [&](int64_t offset, absl::Span<std::byte> block) {
                            return ReadRange(tensor, place.extents, offset,
                                             block);
                          });
  }
  return ForEachPiece(
      box, kStagingBytes, [&](const BoxPiece& piece) -> absl::Status {
        if (piece.contiguous) {
          return ReadRange(tensor, place.extents, piece.offset,
                           absl::MakeSpan(piece.data, piece.bytes));
        }
        staging_.resize(kStagingBytes);
        const auto buffer = absl::MakeSpan(staging_.data(), piece.bytes);
        SHERD_RETURN_IF_ERROR(
            ReadRange(tensor, place.extents, piece.offset, buffer));
        StridedCopy(piece.data, piece.strides, buffer.data(),
                    ContiguousStrides(piece.sizes), piece.sizes,
                    box.element_size);
        return absl::OkStatus();
      });
}

absl::Status ShardBoxReader::ReadRange(const ManifestTensor& tensor,
                                       const SavedExtents& extents,
                                       int64_t offset,
                                       absl::Span<std::byte> out) {
  for (const SavedExtent& extent : extents) {
    if (offset < extent.bytes) {
      const int64_t n =
          std::min(extent.bytes - offset, static_cast<int64_t>(out.size()));
      SHERD_RETURN_IF_ERROR(ReadInExtent(tensor, extent, offset, out.first(n)));
      out.remove_prefix(n);
      if (out.empty()) break;
      offset += n;
    }
    offset -= extent.bytes;
  }
  return absl::OkStatus();
}

absl::Status ShardBoxReader::ReadInExtent(const ManifestTensor& tensor,
                                          const SavedExtent& extent,
                                          int64_t offset,
                                          absl::Span<std::byte> out) {
  while (!out.empty()) {
    const int64_t chunk = offset / reader_.chunk_bytes();
    const int64_t within = offset - chunk * reader_.chunk_bytes();
    const int64_t length = reader_.ChunkLength(extent, chunk);
    const int64_t n =
        std::min(length - within, static_cast<int64_t>(out.size()));
    if (n == length) {
      SHERD_RETURN_IF_ERROR(ReadChunk(tensor, extent, chunk, out.first(n)));
    } else {
      if (chunk_index_ != chunk || !(chunk_extent_ == extent)) {
        chunk_index_ = -1;
        chunk_data_.resize(length);
        SHERD_RETURN_IF_ERROR(
            ReadChunk(tensor, extent, chunk, absl::MakeSpan(chunk_data_)));
        chunk_extent_ = extent;
        chunk_index_ = chunk;
      }
      std::memcpy(out.data(), chunk_data_.data() + within, n);
    }
    offset += n;
    out.remove_prefix(n);
  }
  return absl::OkStatus();
}

absl::Status ShardBoxReader::ReadChunk(const ManifestTensor& tensor,
                                       const SavedExtent& extent, int64_t chunk,
                                       absl::Span<std::byte> buffer) {
  SHERD_ASSIGN_OR_RETURN(const uint32_t expected,
                         reader_.ChunkCrc32c(extent, chunk));
  SHERD_RETURN_IF_ERROR(reader_.Read(
      extent.file, extent.data_offset + chunk * reader_.chunk_bytes(), buffer));
  const uint32_t crc = Crc32c(buffer);
  if (crc == expected) return absl::OkStatus();
  return reader_.WrongChunk(tensor.name, extent, chunk, crc, expected);
}

}  // namespace sherd
