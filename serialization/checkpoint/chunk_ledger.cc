#include "sherd/serialization/checkpoint/chunk_ledger.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {

static_assert(std::is_trivially_copyable_v<PartialChunk>);

absl::Status ChunkLedger::Add(int64_t tensor, const SavedExtent& extent,
                              int64_t offset,
                              absl::Span<const std::byte> data) {
  const int64_t chunk_bytes = reader_.chunk_bytes();
  while (!data.empty()) {
    const int64_t chunk = offset / chunk_bytes;
    const PartialChunk place = {
        .extent = extent, .chunk = chunk, .tensor = tensor};
    if (current_.bytes == 0 || current_.Place() != place.Place() ||
        offset < end_) {
      SHERD_RETURN_IF_ERROR(EndChunk());
      current_ = place;
      end_ = offset;
    }
    const int64_t n = std::min((chunk + 1) * chunk_bytes - offset,
                               static_cast<int64_t>(data.size()));
    current_.sum = shift_(current_.sum, static_cast<uint64_t>(offset - end_));
    current_.sum =
        LinearCrc32c(data.first(static_cast<size_t>(n)), current_.sum);
    current_.bytes += n;
    end_ = offset += n;
    data.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status ChunkLedger::Finish() { return EndChunk(); }

absl::Status ChunkLedger::EndChunk() {
  if (current_.bytes == 0) return absl::OkStatus();
  PartialChunk chunk = std::exchange(current_, PartialChunk());
  const int64_t length = reader_.ChunkLength(chunk.extent, chunk.chunk);
  const int64_t after = chunk.chunk * reader_.chunk_bytes() + length - end_;
  chunk.sum = shift_(chunk.sum, static_cast<uint64_t>(after));
  SHERD_ASSIGN_OR_RETURN(chunk.expected,
                         reader_.ChunkCrc32c(chunk.extent, chunk.chunk));
  if (chunk.bytes == length) return Check(chunk);
  const auto [it, is_new] = partial_.try_emplace(chunk.Place(), chunk);
  if (is_new) return absl::OkStatus();
  it->second.bytes += chunk.bytes;
  it->second.sum ^= chunk.sum;
  if (it->second.bytes != length) return absl::OkStatus();
  chunk = it->second;
  partial_.erase(it);
  return Check(chunk);
}

absl::Status ChunkLedger::Check(const PartialChunk& chunk) const {
  const int64_t length = reader_.ChunkLength(chunk.extent, chunk.chunk);
  if (chunk.bytes != length) {
    return absl::InternalError(absl::StrCat(
        "of chunk ", chunk.extent.first_chunk + chunk.chunk, " of file ",
        chunk.extent.file, ", of tensor ", Quoted(name_of_(chunk.tensor)), ", ",
        chunk.bytes, " bytes were read, expected ", length));
  }
  const uint32_t crc =
      Crc32cFromLinear(chunk.sum, static_cast<uint64_t>(length));
  if (crc == chunk.expected) return absl::OkStatus();
  return reader_.WrongChunk(name_of_(chunk.tensor), chunk.extent, chunk.chunk,
                            crc, chunk.expected);
}

std::vector<PartialChunk> ChunkLedger::TakePartial() {
  std::vector<PartialChunk> chunks;
  chunks.reserve(partial_.size());
  for (const auto& [place, chunk] : partial_) chunks.push_back(chunk);
  partial_.clear();
  std::sort(chunks.begin(), chunks.end(),
            [](const PartialChunk& a, const PartialChunk& b) {
              return a.Place() < b.Place();
            });
  return chunks;
}

absl::Status ChunkLedger::CheckTogether(
    std::vector<PartialChunk> chunks) const {
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
    SHERD_RETURN_IF_ERROR(Check(sum));
  }
  return absl::OkStatus();
}

}  // namespace sherd
