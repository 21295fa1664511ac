#include "sherd/serialization/safetensors/crc32c_fold.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstring>
#include <vector>

namespace sherd::internal {

#if defined(__x86_64__)

namespace {

// As in crc32c.cc: the coefficient of x^0 is in the top bit.
constexpr uint32_t kPolynomial = 0x82f63b78;

// x^n modulo the polynomial.
constexpr uint64_t PowerOfX(size_t n) {
  uint32_t power = uint32_t{1} << 31;
  for (; n > 0; --n) {
    power = (power & 1) != 0 ? (power >> 1) ^ kPolynomial : power >> 1;
  }
  return power;
}

// Multiplying the two halves of 128 bits by these moves them by `bits` towards
// the end of the data: the first half is 64 bits further away from it. A
// product of reflected numbers is shifted by a bit, and of 32-bit factors in
// 64-bit lanes by another 32.
struct Move {
  uint64_t first;
  uint64_t second;
};
constexpr Move MoveBy(size_t bits) {
  return {PowerOfX(bits + 31), PowerOfX(bits - 33)};
}

#define SHERD_FOLD __attribute__((target("avx2,pclmul,vpclmulqdq,sse4.2")))

// A block: a part for multiplications, then three equal ones for the CRC
// instruction.
constexpr size_t kMultipliedBytes = 4096;
constexpr size_t kStreamBytes = 1280;

constexpr size_t kLane = sizeof(__m256i);
constexpr size_t kLanes = 4;
constexpr size_t kRounds = kMultipliedBytes / (kLane * kLanes);
// Of each stream, per round.
constexpr size_t kWords = kStreamBytes / kRounds / sizeof(uint64_t);
static_assert(kRounds * kLanes * kLane == kMultipliedBytes);
static_assert(kRounds * kWords * sizeof(uint64_t) == kStreamBytes);

SHERD_FOLD inline __m256i Load(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

SHERD_FOLD inline __m128i Factors(const Move& move) {
  return _mm_set_epi64x(static_cast<int64_t>(move.second),
                        static_cast<int64_t>(move.first));
}

// `value`, moved, plus `next`.
SHERD_FOLD inline __m256i Fold(__m256i value, __m256i factors, __m256i next) {
  const __m256i first = _mm256_clmulepi64_epi128(value, factors, 0x00);
  const __m256i second = _mm256_clmulepi64_epi128(value, factors, 0x11);
  return _mm256_xor_si256(_mm256_xor_si256(first, second), next);
}

SHERD_FOLD inline uint64_t Step(uint64_t crc, const std::byte* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return _mm_crc32_u64(crc, word);
}

// The CRC of 32 bytes.
SHERD_FOLD inline uint64_t Reduce(__m256i value) {
  constexpr Move kMove = MoveBy(128);
  const __m128i factors = Factors(kMove);
  const __m128i low = _mm256_castsi256_si128(value);
  const __m128i sum =
      _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(low, factors, 0x00),
                                  _mm_clmulepi64_si128(low, factors, 0x11)),
                    _mm256_extracti128_si256(value, 1));
  const uint64_t crc =
      _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(sum)));
  return _mm_crc32_u64(crc, static_cast<uint64_t>(_mm_extract_epi64(sum, 1)));
}

// Continues a CRC over kBytes zeros.
template <size_t kBytes>
SHERD_FOLD inline uint64_t OverZeros(uint64_t crc) {
  constexpr uint64_t kFactor = PowerOfX(8 * kBytes - 33);
  const __m128i product =
      _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(crc)),
                           _mm_cvtsi64_si128(static_cast<int64_t>(kFactor)), 0);
  return _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product)));
}

SHERD_FOLD uint32_t FoldBlock(const std::byte* data, uint32_t state) {
  constexpr Move kFar = MoveBy(8 * kLane * kLanes);
  const __m256i far = _mm256_broadcastsi128_si256(Factors(kFar));
  const std::byte* stream = data + kMultipliedBytes;
  // Moving the state is adding it to the first bytes.
  __m256i a = _mm256_xor_si256(
      Load(data),
      _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(state))));
  __m256i b = Load(data + kLane);
  __m256i c = Load(data + 2 * kLane);
  __m256i d = Load(data + 3 * kLane);
  uint64_t x = 0;
  uint64_t y = 0;
  uint64_t z = 0;
  for (size_t round = 0; round < kRounds; ++round) {
    if (round > 0) {
      data += kLanes * kLane;
      a = Fold(a, far, Load(data));
      b = Fold(b, far, Load(data + kLane));
      c = Fold(c, far, Load(data + 2 * kLane));
      d = Fold(d, far, Load(data + 3 * kLane));
    }
#pragma GCC unroll 8
    for (size_t word = 0; word < kWords; ++word, stream += sizeof(uint64_t)) {
      x = Step(x, stream);
      y = Step(y, stream + kStreamBytes);
      z = Step(z, stream + 2 * kStreamBytes);
    }
  }
  constexpr Move kNear = MoveBy(8 * kLane);
  const __m256i near = _mm256_broadcastsi128_si256(Factors(kNear));
  const uint64_t first = Reduce(Fold(Fold(Fold(a, near, b), near, c), near, d));
  return static_cast<uint32_t>(OverZeros<3 * kStreamBytes>(first) ^
                               OverZeros<2 * kStreamBytes>(x) ^
                               OverZeros<kStreamBytes>(y) ^ z);
}

// The same with vectors of twice the length, which leave less time for the CRC
// instruction. A body of its own, since a function has one set of instructions.
#define SHERD_WIDE_FOLD \
  __attribute__((target("avx512f,avx512vl,avx2,pclmul,vpclmulqdq,sse4.2")))

constexpr size_t kWideStreamBytes = 640;
constexpr size_t kWideLane = sizeof(__m512i);
constexpr size_t kWideRounds = kMultipliedBytes / (kWideLane * kLanes);
constexpr size_t kWideWords = kWideStreamBytes / kWideRounds / sizeof(uint64_t);
static_assert(kWideRounds * kLanes * kWideLane == kMultipliedBytes);
static_assert(kWideRounds * kWideWords * sizeof(uint64_t) == kWideStreamBytes);

SHERD_WIDE_FOLD inline __m512i WideLoad(const std::byte* from) {
  return _mm512_loadu_si512(from);
}

SHERD_WIDE_FOLD inline __m512i WideFold(__m512i value, __m512i factors,
                                        __m512i next) {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(
      _mm512_clmulepi64_epi128(value, factors, 0x00),
      _mm512_clmulepi64_epi128(value, factors, 0x11), next, kXorOfThree);
}

// The forms of intrinsics with a mask, of which no lane is left out: GCC 12
// warns of its own headers at those without.
constexpr __mmask16 kAllWords = 0xffff;
constexpr __mmask8 kAllLanes = 0xff;

SHERD_WIDE_FOLD uint32_t WideFoldBlock(const std::byte* data, uint32_t state) {
  constexpr Move kFar = MoveBy(8 * kWideLane * kLanes);
  const __m512i far = _mm512_maskz_broadcast_i32x4(kAllWords, Factors(kFar));
  const std::byte* stream = data + kMultipliedBytes;
  __m512i a = _mm512_xor_si512(
      WideLoad(data),
      _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  __m512i b = WideLoad(data + kWideLane);
  __m512i c = WideLoad(data + 2 * kWideLane);
  __m512i d = WideLoad(data + 3 * kWideLane);
  uint64_t x = 0;
  uint64_t y = 0;
  uint64_t z = 0;
  for (size_t round = 0; round < kWideRounds; ++round) {
    if (round > 0) {
      data += kLanes * kWideLane;
      a = WideFold(a, far, WideLoad(data));
      b = WideFold(b, far, WideLoad(data + kWideLane));
      c = WideFold(c, far, WideLoad(data + 2 * kWideLane));
      d = WideFold(d, far, WideLoad(data + 3 * kWideLane));
    }
#pragma GCC unroll 8
    for (size_t word = 0; word < kWideWords;
         ++word, stream += sizeof(uint64_t)) {
      x = Step(x, stream);
      y = Step(y, stream + kWideStreamBytes);
      z = Step(z, stream + 2 * kWideStreamBytes);
    }
  }
  constexpr Move kNear = MoveBy(8 * kWideLane);
  const __m512i near = _mm512_maskz_broadcast_i32x4(kAllWords, Factors(kNear));
  const __m512i sum =
      WideFold(WideFold(WideFold(a, near, b), near, c), near, d);
  constexpr Move kHalf = MoveBy(8 * kLane);
  const uint64_t first =
      Reduce(Fold(_mm512_maskz_extracti64x4_epi64(kAllLanes, sum, 0),
                  _mm256_broadcastsi128_si256(Factors(kHalf)),
                  _mm512_maskz_extracti64x4_epi64(kAllLanes, sum, 1)));
  return static_cast<uint32_t>(OverZeros<3 * kWideStreamBytes>(first) ^
                               OverZeros<2 * kWideStreamBytes>(x) ^
                               OverZeros<kWideStreamBytes>(y) ^ z);
}

#undef SHERD_FOLD
#undef SHERD_WIDE_FOLD

template <uint32_t (*kFoldBlock)(const std::byte*, uint32_t), size_t kBytes>
uint32_t FoldBlocks(const std::byte* data, size_t blocks, uint32_t state) {
  for (; blocks > 0; --blocks, data += kBytes) state = kFoldBlock(data, state);
  return state;
}

std::vector<Crc32cFold> FindFolds() {
  std::vector<Crc32cFold> folds;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("pclmul") ||
      !__builtin_cpu_supports("vpclmulqdq") ||
      !__builtin_cpu_supports("sse4.2")) {
    return folds;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) {
    constexpr size_t kBytes = kMultipliedBytes + 3 * kWideStreamBytes;
    folds.push_back({"512 bits", kBytes, FoldBlocks<WideFoldBlock, kBytes>});
  }
  constexpr size_t kBytes = kMultipliedBytes + 3 * kStreamBytes;
  folds.push_back({"256 bits", kBytes, FoldBlocks<FoldBlock, kBytes>});
  return folds;
}

}  // namespace

absl::Span<const Crc32cFold> SupportedCrc32cFolds() {
  static const auto& folds = *new std::vector<Crc32cFold>(FindFolds());
  return folds;
}

#else

absl::Span<const Crc32cFold> SupportedCrc32cFolds() { return {}; }

#endif

}  // namespace sherd::internal
