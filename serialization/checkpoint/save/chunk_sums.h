#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_CHUNK_SUMS_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_CHUNK_SUMS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "sherd/serialization/safetensors/crc32c.h"

namespace sherd {

// Computes the linear CRCs of the chunks of one shard from its bytes, of which
// some may be left out: see LinearCrc32c. Not thread-safe.
class ChunkSums {
 public:
  // `sums` has one entry per chunk, each the XOR of the parts so far, at first
  // 0. Borrowed.
  ChunkSums(int64_t shard_bytes, int64_t chunk_bytes, absl::Span<uint32_t> sums)
      : shard_bytes_(shard_bytes), chunk_bytes_(chunk_bytes), sums_(sums) {}

  // Adds the bytes from `offset` in the shard on, which is not below the end of
  // those before.
  void Add(int64_t offset, absl::Span<const std::byte> data);

  // Call it after the last Add.
  void Finish();

 private:
  const int64_t shard_bytes_;
  const int64_t chunk_bytes_;
  const absl::Span<uint32_t> sums_;
  LinearCrc32cShift shift_;
  // The current chunk, and the position in it; -1 before the first.
  int64_t chunk_ = -1;
  int64_t position_ = 0;
  uint32_t state_ = 0;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_CHUNK_SUMS_H_
