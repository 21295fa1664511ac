#ifndef SHERD_SERIALIZATION_CHECKPOINT_INCREMENTAL_CHUNK_HASH_H_
#define SHERD_SERIALIZATION_CHECKPOINT_INCREMENTAL_CHUNK_HASH_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// XXH3 with 128 bits of a chunk: https://github.com/Cyan4973/xxHash, whose
// authors specify it and test its quality. Two of 2^40 chunks that differ have
// one hash with a probability below 2^-48. Not against malice: two
// chunks of one hash can be constructed.
struct ChunkHash {
  uint64_t low = 0;
  uint64_t high = 0;

  friend bool operator==(const ChunkHash&, const ChunkHash&) = default;
};

ChunkHash HashChunk(absl::Span<const std::byte> chunk);

// Hashes the elements of a tensor, row-major, with any strides, in chunks of
// `chunk_bytes`, of which the last may be shorter; `hashes` has one entry per
// chunk. `progress` is called at least once per 512 KiB; its error ends the
// work.
//
// Cost. One pass at the speed of memory; buffers as AppendTensor.
absl::Status HashChunks(const Tensor& tensor, int64_t chunk_bytes,
                        absl::FunctionRef<absl::Status()> progress,
                        absl::Span<ChunkHash> hashes);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_INCREMENTAL_CHUNK_HASH_H_
