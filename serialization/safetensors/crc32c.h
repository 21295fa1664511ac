#ifndef SHERD_SERIALIZATION_SAFETENSORS_CRC32C_H_
#define SHERD_SERIALIZATION_SAFETENSORS_CRC32C_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace sherd {

// CRC-32C (Castagnoli) as in RFC 3720 and SSE 4.2: Crc32c("123456789") is
// 0xe3069283. If `seed` is the CRC of the bytes before `data`, the result is
// the CRC of both together; the CRC of nothing is 0.
//
// Cost. The speed of memory; about 100 GB/s from the cache.
uint32_t Crc32c(absl::Span<const std::byte> data, uint32_t seed = 0);

// Crc32c of a followed by b, from the CRCs of both and the length of b.
uint32_t CombineCrc32c(uint32_t a, uint32_t b, uint64_t b_bytes);

// Without start value and final inversion the CRC is linear: that of a message
// is the XOR of those of its parts, each with zeros in place of the other
// parts. So readers which each read some bytes of a message can check its CRC
// together without exchanging the bytes.

// The linear CRC of the bytes that `state` is the CRC of, followed by `data`.
uint32_t LinearCrc32c(absl::Span<const std::byte> data, uint32_t state = 0);

// Continues linear CRCs over zeros. Caches the last few distances, since
// strided data repeats them. Not thread-safe.
class LinearCrc32cShift {
 public:
  // LinearCrc32c of the bytes that `state` is the CRC of, followed by `bytes`
  // zeros.
  uint32_t operator()(uint32_t state, uint64_t bytes);

 private:
  // Multiplies by x^(8 * bytes): the sum of one entry per group of four bits.
  struct Power {
    uint64_t bytes = 0;
    std::array<std::array<uint32_t, 16>, 8> table = {};
  };

  static void Fill(uint64_t bytes, Power& power);

  std::array<Power, 4> powers_;
  size_t next_ = 0;
};

// Crc32c of a message of `bytes` bytes from its linear CRC, and the reverse.
uint32_t Crc32cFromLinear(uint32_t linear, uint64_t bytes);
uint32_t LinearFromCrc32c(uint32_t crc, uint64_t bytes);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_SAFETENSORS_CRC32C_H_
