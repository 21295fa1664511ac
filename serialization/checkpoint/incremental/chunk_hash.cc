#include "sherd/serialization/checkpoint/incremental/chunk_hash.h"

#include <algorithm>

#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint/save/tensor_runs.h"

// All of the library is in its header then.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sherd {
namespace {

constexpr int64_t kProgressBytes = 256 << 10;

ChunkHash FromXxh(XXH128_hash_t hash) { return {hash.low64, hash.high64}; }

}  // namespace

ChunkHash HashChunk(absl::Span<const std::byte> chunk) {
  return FromXxh(XXH3_128bits(chunk.data(), chunk.size()));
}

absl::Status HashChunks(const Tensor& tensor, int64_t chunk_bytes,
                        absl::FunctionRef<absl::Status()> progress,
                        absl::Span<ChunkHash> hashes) {
  // Of a chunk that comes in several runs.
  XXH3_state_t state;
  int64_t unreported = 0;
  return ForEachRun(
      tensor, {0, tensor.nbytes()},
      [&](int64_t offset, absl::Span<const std::byte> data) -> absl::Status {
        while (!data.empty()) {
          const int64_t begin = offset / chunk_bytes * chunk_bytes;
          const int64_t end = std::min(begin + chunk_bytes, tensor.nbytes());
          const auto block = data.first(
              std::min(data.size(), static_cast<size_t>(end - offset)));
          ChunkHash& hash = hashes[static_cast<size_t>(begin / chunk_bytes)];
          const bool ends = offset + static_cast<int64_t>(block.size()) == end;
          if (offset == begin && ends) {
            hash = HashChunk(block);
          } else {
            if (offset == begin) XXH3_128bits_reset(&state);
            XXH3_128bits_update(&state, block.data(), block.size());
            if (ends) hash = FromXxh(XXH3_128bits_digest(&state));
          }
          offset += static_cast<int64_t>(block.size());
          data.remove_prefix(block.size());
          unreported += static_cast<int64_t>(block.size());
          if (unreported < kProgressBytes) continue;
          unreported = 0;
          SHERD_RETURN_IF_ERROR(progress());
        }
        return absl::OkStatus();
      });
}

}  // namespace sherd
