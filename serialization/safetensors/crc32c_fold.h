#ifndef SHERD_SERIALIZATION_SAFETENSORS_CRC32C_FOLD_H_
#define SHERD_SERIALIZATION_SAFETENSORS_CRC32C_FOLD_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace sherd::internal {

// Computes LinearCrc32c (crc32c.h) of `blocks` times block_bytes bytes.
// Carry-less multiplications of vectors and the CRC instruction run beside each
// other, on different units of the processor: up to twice as fast as either
// alone. On Zen 5, from the cache: 61 GB/s with vectors of 256 bits, 89 GB/s
// with 512.
struct Crc32cFold {
  const char* name;
  size_t block_bytes;
  uint32_t (*run)(const std::byte* data, size_t blocks, uint32_t state);
};

// Those for which this processor has the instructions, the fastest first.
absl::Span<const Crc32cFold> SupportedCrc32cFolds();

}  // namespace sherd::internal

#endif  // SHERD_SERIALIZATION_SAFETENSORS_CRC32C_FOLD_H_
