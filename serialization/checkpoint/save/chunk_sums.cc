#include "sherd/serialization/checkpoint/save/chunk_sums.h"

#include <algorithm>

namespace sherd {

void ChunkSums::Add(int64_t offset, absl::Span<const std::byte> data) {
  while (!data.empty()) {
    const int64_t chunk = offset / chunk_bytes_;
    if (chunk != chunk_) {
      Finish();
      chunk_ = chunk;
      position_ = chunk * chunk_bytes_;
    }
    const int64_t n = std::min((chunk + 1) * chunk_bytes_ - offset,
                               static_cast<int64_t>(data.size()));
    state_ = shift_(state_, offset - position_);
    state_ = LinearCrc32c(data.first(n), state_);
    position_ = offset += n;
    data.remove_prefix(n);
  }
}

void ChunkSums::Finish() {
  if (chunk_ >= 0) {
    const int64_t end = std::min((chunk_ + 1) * chunk_bytes_, shard_bytes_);
    sums_[chunk_] ^= shift_(state_, end - position_);
  }
  chunk_ = -1;
  state_ = 0;
}

}  // namespace sherd
