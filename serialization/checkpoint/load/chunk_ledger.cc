#include "sherd/serialization/checkpoint/load/chunk_ledger.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {

static_assert(std::is_trivially_copyable_v<PartialChunk>);
static_assert(sizeof(PartialChunk) == 32);
static_assert(kMaxChunkBytes <= std::numeric_limits<int32_t>::max());

absl::Status ChunkLedger::Add(const ExtentOfShard& place, int64_t offset,
                              absl::Span<const std::byte> data) {
  const int64_t chunk_bytes = reader_.chunk_bytes();
  while (!data.empty()) {
    const int64_t chunk = offset / chunk_bytes;
    const PartialChunk next = {.shard = place.shard,
                               .chunk = place.chunks_before + chunk,
                               .tensor = place.tensor};
    if (current_.bytes == 0 || current_.Place() != next.Place() ||
        offset < end_) {
      SHERD_RETURN_IF_ERROR(EndChunk());
      current_ = next;
      place_ = place;
      end_ = offset;
    }
    const int64_t n = std::min((chunk + 1) * chunk_bytes - offset,
                               static_cast<int64_t>(data.size()));
    current_.sum = shift_(current_.sum, static_cast<uint64_t>(offset - end_));
    current_.sum =
        LinearCrc32c(data.first(static_cast<size_t>(n)), current_.sum);
    current_.bytes += static_cast<int32_t>(n);
    end_ = offset += n;
    data.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status ChunkLedger::Finish() { return EndChunk(); }

absl::Status ChunkLedger::EndChunk() {
  if (current_.bytes == 0) return absl::OkStatus();
  PartialChunk chunk = std::exchange(current_, PartialChunk());
  const int64_t in_extent = chunk.chunk - place_.chunks_before;
  const int64_t length = reader_.ChunkLength(place_.extent, in_extent);
  const int64_t after = in_extent * reader_.chunk_bytes() + length - end_;
  chunk.sum = shift_(chunk.sum, static_cast<uint64_t>(after));
  SHERD_ASSIGN_OR_RETURN(chunk.expected,
                         reader_.ChunkCrc32c(place_.extent, in_extent));
  return AddPart(chunk, place_, length);
}

absl::Status ChunkLedger::AddPart(PartialChunk chunk,
                                  const ExtentOfShard& place, int64_t length) {
  if (chunk.bytes == length) return Check(chunk, place);
  const auto [it, is_new] = partial_.try_emplace(
      chunk.Place(), Part{chunk.bytes, chunk.sum, chunk.expected});
  if (is_new) return absl::OkStatus();
  Part& part = it->second;
  part.bytes += chunk.bytes;
  part.sum ^= chunk.sum;
  if (part.bytes != length) return absl::OkStatus();
  chunk.bytes = part.bytes;
  chunk.sum = part.sum;
  partial_.erase(it);
  return Check(chunk, place);
}

absl::Status ChunkLedger::Merge(ChunkLedger& other) {
  if (partial_.empty()) {
    partial_ = std::exchange(other.partial_, {});
    return absl::OkStatus();
  }
  for (const PartialChunk& chunk : other.TakePartial()) {
    const auto [place, length] = FindChunk(chunk);
    SHERD_RETURN_IF_ERROR(AddPart(chunk, place, length));
  }
  return absl::OkStatus();
}

absl::Status ChunkLedger::Check(const PartialChunk& chunk,
                                const ExtentOfShard& place) {
  if (chunk.bytes != zeros_) {
    zeros_ = chunk.bytes;
    crc_of_zeros_ = Crc32cFromLinear(0, static_cast<uint64_t>(zeros_));
  }
  const uint32_t crc = chunk.sum ^ crc_of_zeros_;
  if (crc == chunk.expected) return absl::OkStatus();
  return reader_.WrongChunk(tensor_of_(chunk.tensor).name, place.extent,
                            chunk.chunk - place.chunks_before, crc,
                            chunk.expected);
}

std::pair<ExtentOfShard, int64_t> ChunkLedger::FindChunk(
    const PartialChunk& chunk) const {
  ExtentOfShard place = {.tensor = chunk.tensor, .shard = chunk.shard};
  for (const SavedExtent& extent :
       tensor_of_(chunk.tensor)
           .PlaceOf(chunk.shard, reader_.chunk_bytes())
           .extents) {
    const int64_t in_extent = chunk.chunk - place.chunks_before;
    const int64_t chunks = NumChunks(extent.bytes, reader_.chunk_bytes());
    if (in_extent < chunks) {
      place.extent = extent;
      return {place, reader_.ChunkLength(extent, in_extent)};
    }
    place.chunks_before += chunks;
  }
  return {place, 0};
}

absl::Status ChunkLedger::CheckSum(const PartialChunk& chunk) {
  const auto [place, length] = FindChunk(chunk);
  if (chunk.bytes == length) return Check(chunk, place);
  return absl::InternalError(
      absl::StrCat("of chunk ", chunk.chunk, " of shard ", chunk.shard,
                   " of tensor ", Quoted(tensor_of_(chunk.tensor).name), ", ",
                   chunk.bytes, " bytes were read, expected ", length));
}

std::vector<PartialChunk> ChunkLedger::TakePartial() {
  std::vector<PartialChunk> chunks;
  chunks.reserve(partial_.size());
  for (const auto& [place, part] : partial_) {
    const auto [tensor, shard, chunk] = place;
    chunks.push_back(
        {shard, chunk, tensor, part.bytes, part.sum, part.expected});
  }
  partial_ = {};
  std::sort(chunks.begin(), chunks.end(),
            [](const PartialChunk& a, const PartialChunk& b) {
              return a.Place() < b.Place();
            });
  return chunks;
}

absl::Status ChunkLedger::CheckTogether(std::vector<PartialChunk> chunks) {
  std::sort(chunks.begin(), chunks.end(),
            [](const PartialChunk& a, const PartialChunk& b) {
              return a.Place() < b.Place();
            });
  for (size_t i = 0; i < chunks.size();) {
    PartialChunk sum = chunks[i];
    for (++i; i < chunks.size() && chunks[i].Place() == sum.Place(); ++i) {
      sum.bytes += chunks[i].bytes;
      sum.sum ^= chunks[i].sum;
    }
    SHERD_RETURN_IF_ERROR(CheckSum(sum));
  }
  return absl::OkStatus();
}

}  // namespace sherd
