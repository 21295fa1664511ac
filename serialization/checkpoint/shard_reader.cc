#include "sherd/serialization/checkpoint/shard_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/serialization/checkpoint/chunk_sums.h"
#include "sherd/serialization/safetensors/box_pieces.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/device_blocks.h"

namespace sherd {
namespace {

// Scattered data goes through a buffer that stays in the cache.
constexpr int64_t kStagingBytes = 256 << 10;
// A rank may need pieces of very many files; descriptors are scarce.
constexpr size_t kMaxOpenFiles = 128;

BoxInArray BoxOf(const ManifestShardV1& shard,
                 absl::Span<const int64_t> offsets, const Tensor& tensor) {
  BoxInArray box;
  box.array_sizes = shard.sizes;
  box.offsets = offsets;
  box.sizes = tensor.sizes();
  box.element_size = tensor.element_size();
  box.data =
      const_cast<std::byte*>(static_cast<const std::byte*>(tensor.data()));
  box.strides = tensor.strides();
  return box;
}

}  // namespace

absl::StatusOr<File*> ShardReader::FileAt(int32_t index) {
  const auto it = open_.find(index);
  if (it != open_.end()) return it->second.get();
  const ManifestFileV1& expected = manifest_.files[index];
  absl::StatusOr<std::unique_ptr<File>> file =
      files_.OpenForRead(JoinPath(directory_, expected.name));
  if (absl::IsNotFound(file.status())) return Missing(index);
  SHERD_RETURN_IF_ERROR(file.status());
  SHERD_ASSIGN_OR_RETURN(const int64_t size, (*file)->Size());
  if (size != expected.size) return WrongSize(index, size);
  if (after_read_ != nullptr) SHERD_RETURN_IF_ERROR(after_read_());
  if (open_.size() >= kMaxOpenFiles) open_.erase(open_.begin());
  return open_.emplace(index, *std::move(file)).first->second.get();
}

absl::Status ShardReader::Missing(int32_t file) const {
  return absl::DataLossError(absl::StrCat(
      JoinPath(directory_, manifest_.files[file].name), " is missing",
      FirstLost(file, 0),
      "; the checkpoint is incomplete, or a save has replaced it since its "
      "manifest was read: open it again to see"));
}

absl::Status ShardReader::WrongSize(int32_t file, int64_t size) const {
  const ManifestFileV1& expected = manifest_.files[file];
  return absl::DataLossError(
      absl::StrCat(JoinPath(directory_, expected.name), " has ", size,
                   " bytes, expected ", expected.size, FirstLost(file, size)));
}

std::string ShardReader::FirstLost(int32_t file, int64_t size) const {
  // The tensor that the file ends in, or would begin with.
  SavedShard first;
  for (const ManifestTensorV1& tensor : manifest_.tensors) {
    for (const ManifestShardV1& shard : tensor.shards) {
      if (shard.file != file) continue;
      const bool cut =
          shard.file_offset + manifest_.ShardBytes(tensor, shard) > size;
      if (first.shard == nullptr ||
          (cut && shard.file_offset < first.shard->file_offset) ||
          (cut && first.shard->file_offset +
                          manifest_.ShardBytes(*first.tensor, *first.shard) <=
                      size)) {
        first = {&tensor, &shard};
      }
    }
  }
  if (first.tensor == nullptr) return "";
  return absl::StrCat("; it has tensor ", Quoted(first.tensor->name),
                      " at offset ", first.shard->file_offset);
}

absl::Status ShardReader::Open(int32_t file) { return FileAt(file).status(); }

absl::Status ShardReader::Read(File& file, int64_t offset,
                               absl::Span<std::byte> buffer) {
  bytes_read_ += static_cast<int64_t>(buffer.size());
  SHERD_RETURN_IF_ERROR(file.ReadAt(offset, buffer));
  return after_read_ == nullptr ? absl::OkStatus() : after_read_();
}

int64_t ShardReader::ChunkLength(const SavedShard& saved, int64_t chunk) const {
  return std::min(manifest_.chunk_bytes,
                  manifest_.ShardBytes(*saved.tensor, *saved.shard) -
                      chunk * manifest_.chunk_bytes);
}

absl::Status ShardReader::WrongChunk(const SavedShard& saved, int64_t chunk,
                                     uint32_t actual) const {
  const int64_t begin =
      saved.shard->file_offset + chunk * manifest_.chunk_bytes;
  return absl::DataLossError(absl::StrCat(
      JoinPath(directory_, manifest_.files[saved.shard->file].name),
      ": tensor ", Quoted(saved.tensor->name),
      " is damaged: the bytes from offset ", begin, " to ",
      begin + ChunkLength(saved, chunk), " have the CRC-32C ",
      absl::Hex(actual, absl::kZeroPad8), ", expected ",
      absl::Hex(manifest_.chunk_crc32c[saved.shard->first_chunk + chunk],
                absl::kZeroPad8)));
}

absl::Status ShardReader::Check(const SavedShard& saved,
                                absl::Span<const uint32_t> sums) const {
  for (size_t i = 0; i < sums.size(); ++i) {
    SHERD_RETURN_IF_ERROR(CheckChunk(saved, static_cast<int64_t>(i), sums[i]));
  }
  return absl::OkStatus();
}

absl::Status ShardReader::CheckChunk(const SavedShard& saved, int64_t chunk,
                                     uint32_t sum) const {
  const uint32_t crc =
      Crc32cFromLinear(sum, static_cast<uint64_t>(ChunkLength(saved, chunk)));
  if (crc == manifest_.chunk_crc32c[saved.shard->first_chunk + chunk]) {
    return absl::OkStatus();
  }
  return WrongChunk(saved, chunk, crc);
}

absl::Status ShardReader::ReadBox(const SavedShard& saved,
                                  absl::Span<const int64_t> offsets,
                                  Tensor destination,
                                  absl::Span<uint32_t> sums) {
  if (destination.numel() == 0) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(File * file, FileAt(saved.shard->file));
  const int64_t start = saved.shard->file_offset;
  ChunkSums chunks(manifest_.ShardBytes(*saved.tensor, *saved.shard),
                   manifest_.chunk_bytes, sums);
  const BoxInArray box = BoxOf(*saved.shard, offsets, destination);
  // In pieces whose CRC is computed while they are still in the cache.
  const auto read_run = [&](int64_t offset,
                            absl::Span<std::byte> run) -> absl::Status {
    while (!run.empty()) {
      const auto buffer =
          run.first(std::min(run.size(), static_cast<size_t>(kStagingBytes)));
      SHERD_RETURN_IF_ERROR(Read(*file, start + offset, buffer));
      chunks.Add(offset, buffer);
      offset += static_cast<int64_t>(buffer.size());
      run.remove_prefix(buffer.size());
    }
    return absl::OkStatus();
  };
  const auto read_piece = [&](const BoxPiece& piece) -> absl::Status {
    if (!piece.contiguous) {
      staging_.resize(kStagingBytes);
      const auto buffer = absl::MakeSpan(staging_.data(), piece.bytes);
      SHERD_RETURN_IF_ERROR(read_run(piece.offset, buffer));
      StridedCopy(piece.data, piece.strides, buffer.data(),
                  ContiguousStrides(piece.sizes), piece.sizes,
                  box.element_size);
      return absl::OkStatus();
    }
    return read_run(piece.offset, absl::MakeSpan(piece.data, piece.bytes));
  };
  SHERD_RETURN_IF_ERROR(
      destination.device().is_cpu()
          ? ForEachPiece(box, kStagingBytes, read_piece)
          : WriteDeviceBox(box, destination.device(), read_run));
  chunks.Finish();
  return absl::OkStatus();
}

absl::Status ShardReader::ReadChunk(const SavedShard& saved, int64_t chunk,
                                    absl::Span<std::byte> buffer) {
  SHERD_ASSIGN_OR_RETURN(File * file, FileAt(saved.shard->file));
  SHERD_RETURN_IF_ERROR(Read(
      *file, saved.shard->file_offset + chunk * manifest_.chunk_bytes, buffer));
  const uint32_t crc = Crc32c(buffer);
  if (crc != manifest_.chunk_crc32c[saved.shard->first_chunk + chunk]) {
    return WrongChunk(saved, chunk, crc);
  }
  return absl::OkStatus();
}

absl::Status ShardReader::ReadRangeChecked(const SavedShard& saved,
                                           int64_t offset,
                                           absl::Span<std::byte> out) {
  while (!out.empty()) {
    const int64_t chunk = offset / manifest_.chunk_bytes;
    const int64_t within = offset - chunk * manifest_.chunk_bytes;
    const int64_t length = ChunkLength(saved, chunk);
    const int64_t n =
        std::min(length - within, static_cast<int64_t>(out.size()));
    if (n == length) {
      SHERD_RETURN_IF_ERROR(ReadChunk(saved, chunk, out.first(n)));
    } else {
      if (chunk_shard_ != saved.shard || chunk_index_ != chunk) {
        chunk_shard_ = nullptr;
        chunk_data_.resize(length);
        SHERD_RETURN_IF_ERROR(
            ReadChunk(saved, chunk, absl::MakeSpan(chunk_data_)));
        chunk_shard_ = saved.shard;
        chunk_index_ = chunk;
      }
      std::memcpy(out.data(), chunk_data_.data() + within, n);
    }
    offset += n;
    out.remove_prefix(n);
  }
  return absl::OkStatus();
}

absl::Status ShardReader::ReadBoxChecked(const SavedShard& saved,
                                         absl::Span<const int64_t> offsets,
                                         Tensor destination) {
  const BoxInArray box = BoxOf(*saved.shard, offsets, destination);
  return ForEachPiece(
      box, kStagingBytes, [&](const BoxPiece& piece) -> absl::Status {
        if (piece.contiguous) {
          return ReadRangeChecked(saved, piece.offset,
                                  absl::MakeSpan(piece.data, piece.bytes));
        }
        staging_.resize(kStagingBytes);
        const auto buffer = absl::MakeSpan(staging_.data(), piece.bytes);
        SHERD_RETURN_IF_ERROR(ReadRangeChecked(saved, piece.offset, buffer));
        StridedCopy(piece.data, piece.strides, buffer.data(),
                    ContiguousStrides(piece.sizes), piece.sizes,
                    box.element_size);
        return absl::OkStatus();
      });
}

absl::Status ShardReader::Verify(const SavedShard& saved) {
  const int64_t chunks = manifest_.NumChunks(*saved.tensor, *saved.shard);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    staging_.resize(std::max<int64_t>(kStagingBytes, manifest_.chunk_bytes));
    SHERD_RETURN_IF_ERROR(
        ReadChunk(saved, chunk,
                  absl::MakeSpan(staging_.data(), ChunkLength(saved, chunk))));
  }
  return absl::OkStatus();
}

}  // namespace sherd
