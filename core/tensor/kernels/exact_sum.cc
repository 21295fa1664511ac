#include "sherd/core/tensor/kernels/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace sherd {
namespace {

constexpr int kLimbBits = 32;
constexpr int64_t kLimbMask = 0xffffffff;
// The weight of bit 0 of the first limb.
constexpr int kLowestExponent = -1074;

// Numbers that are cut into slices together: few enough for the cache, and for
// their slices to add up without rounding.
constexpr int kBlockBits = 11;
constexpr size_t kBlock = size_t{1} << kBlockBits;
constexpr int kSliceBits = 52 - kBlockBits;
// Beyond it the constant that cuts a slice would overflow.
constexpr int kMaxSlicedExponent = 960;

// Blocks are multiples of this many numbers, which are treated alike.
constexpr size_t kStrands = 32;

#define SHERD_EXACT_SUM_NAMESPACE baseline
#define SHERD_EXACT_SUM_ATTRIBUTES
#define SHERD_EXACT_SUM_VECTOR_BYTES 16
#include "sherd/core/tensor/kernels/exact_sum_kernels.inc"  // NOLINT(build/include)

#if defined(__x86_64__)
#define SHERD_EXACT_SUM_NAMESPACE avx2
#define SHERD_EXACT_SUM_ATTRIBUTES __attribute__((target("avx2")))
#define SHERD_EXACT_SUM_VECTOR_BYTES 32
#include "sherd/core/tensor/kernels/exact_sum_kernels.inc"  // NOLINT(build/include)

#define SHERD_EXACT_SUM_NAMESPACE avx512
#define SHERD_EXACT_SUM_ATTRIBUTES \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2")))
#define SHERD_EXACT_SUM_VECTOR_BYTES 64
#include "sherd/core/tensor/kernels/exact_sum_kernels.inc"  // NOLINT(build/include)
#endif

struct Kernels {
  double (*largest)(const double* values, size_t count);
  double (*slice)(double* values, size_t count, double cutter, bool& rest);
};

Kernels BestKernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return {avx512::Largest, avx512::Slice};
  }
  if (__builtin_cpu_supports("avx2")) return {avx2::Largest, avx2::Slice};
#endif
  return {baseline::Largest, baseline::Slice};
}

}  // namespace

void ExactSum::AddAt(int bit, uint64_t magnitude, bool negative) {
  // Three limbs take up what one 64-bit number touches.
  const size_t limb = static_cast<size_t>(bit / kLimbBits);
  const absl::uint128 shifted = absl::uint128(magnitude) << (bit % kLimbBits);
  for (size_t i = 0; i < 3; ++i) {
    const int64_t part = static_cast<int64_t>(
        absl::Uint128Low64(shifted >> (i * kLimbBits)) & kLimbMask);
    limbs_[limb + i] += negative ? -part : part;
  }
  // A limb grows by less than 2^32 each time.
  if (++pending_ == int64_t{1} << 29) Normalize();
}

void ExactSum::Add(double value) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  const bool negative = std::signbit(value);
  if (exponent == 0x7ff) {
    ++specials_[fraction != 0 ? 0 : negative ? 2 : 1];
    return;
  }
  if (exponent == 0) {
    if (fraction != 0) AddAt(0, fraction, negative);
    return;
  }
  AddAt(exponent - 1, fraction | (uint64_t{1} << 52), negative);
}

void ExactSum::Add(absl::int128 value) {
  const bool negative = value < 0;
  absl::uint128 magnitude(value);
  if (negative) magnitude = -magnitude;
  AddAt(-kLowestExponent, absl::Uint128Low64(magnitude), negative);
  AddAt(-kLowestExponent + 64, absl::Uint128High64(magnitude), negative);
}

void ExactSum::Add(absl::Span<const double> values) {
  std::array<double, kBlock> block;
  while (!values.empty()) {
    const size_t count = std::min(values.size(), kBlock);
    const size_t padded = (count + kStrands - 1) / kStrands * kStrands;
    std::copy_n(values.begin(), count, block.begin());
    std::fill(block.begin() + count, block.begin() + padded, 0.0);
    AddBlock(absl::MakeSpan(block.data(), padded));
    values.remove_prefix(count);
  }
}

void ExactSum::AddBlock(absl::Span<double> values) {
  const Kernels kernels = BestKernels();
  const double largest = kernels.largest(values.data(), values.size());
  if (largest == 0) return;
  if (!(largest < std::ldexp(1.0, kMaxSlicedExponent))) {
    for (const double value : values) Add(value);
    return;
  }
  // Numbers below 2^top in magnitude.
  int top = std::ilogb(largest) + 1;
  for (bool rest = true; rest; top -= kSliceBits + 1) {
    const int unit = std::max(top - kSliceBits, kLowestExponent);
    // Half of the binade above it is left for the sum with a number of either
    // sign.
    const double cutter = std::ldexp(1.5, unit + 52);
    Add(kernels.slice(values.data(), values.size(), cutter, rest));
  }
}

void ExactSum::Add(const ExactSum& other) {
  ExactSum normal = other;
  normal.Normalize();
  for (size_t i = 0; i < kLimbs; ++i) limbs_[i] += normal.limbs_[i];
  for (size_t i = 0; i < kSpecials; ++i) specials_[i] += normal.specials_[i];
  if (++pending_ == int64_t{1} << 29) Normalize();
}

void ExactSum::Normalize() {
  int64_t carry = 0;
  for (size_t i = 0; i + 1 < kLimbs; ++i) {
    const int64_t limb = limbs_[i] + carry;
    limbs_[i] = limb & kLimbMask;
    carry = limb >> kLimbBits;
  }
  limbs_[kLimbs - 1] += carry;
  pending_ = 0;
}

bool ExactSum::TakeMagnitude() {
  Normalize();
  const bool negative = limbs_[kLimbs - 1] < 0;
  if (negative) {
    for (int64_t& limb : limbs_) limb = -limb;
    Normalize();
  }
  return negative;
}

double ExactSum::Round() const {
  if (specials_[0] > 0 || (specials_[1] > 0 && specials_[2] > 0)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (specials_[1] > 0) return std::numeric_limits<double>::infinity();
  if (specials_[2] > 0) return -std::numeric_limits<double>::infinity();
  ExactSum magnitude = *this;
  const bool negative = magnitude.TakeMagnitude();
  const auto& limbs = magnitude.limbs_;
  int top = static_cast<int>(kLimbs) - 1;
  while (top >= 0 && limbs[top] == 0) --top;
  if (top < 0) return 0;
  // 128 bits from the highest one on, what is below in the last of them.
  absl::uint128 bits = 0;
  for (int i = top; i > top - 4; --i) {
    bits = bits << kLimbBits | (i >= 0 ? static_cast<uint64_t>(limbs[i]) : 0);
  }
  const bool below =
      std::any_of(limbs.begin(), limbs.begin() + std::max(top - 3, 0),
                  [](int64_t limb) { return limb != 0; });
  int lowest = kLimbBits * (top - 3);
  const int zeros = std::countl_zero(absl::Uint128High64(bits));
  bits = bits << zeros | (below ? 1 : 0);
  lowest -= zeros;
  // A number below 2^-1021 has fewer than 53 bits; they are all there are.
  const int digits = std::min(53, 128 + lowest);
  const int dropped = 128 - digits;
  uint64_t mantissa = absl::Uint128Low64(bits >> dropped);
  const absl::uint128 rest =
      bits & ((absl::uint128(1) << dropped) - absl::uint128(1));
  const absl::uint128 half = absl::uint128(1) << (dropped - 1);
  if (rest > half || (rest == half && (mantissa & 1) != 0)) ++mantissa;
  const double value = std::ldexp(static_cast<double>(mantissa),
                                  lowest + dropped + kLowestExponent);
  return negative ? -value : value;
}

bool ExactSum::ToInteger(absl::int128& value) const {
  for (const int64_t special : specials_) {
    if (special > 0) return false;
  }
  ExactSum magnitude = *this;
  const bool negative = magnitude.TakeMagnitude();
  absl::uint128 bits = 0;
  for (size_t i = 0; i < kLimbs; ++i) {
    const uint64_t limb = static_cast<uint64_t>(magnitude.limbs_[i]);
    if (limb == 0) continue;
    const int shift = static_cast<int>(i) * kLimbBits + kLowestExponent;
    const int width = std::bit_width(limb);
    if (shift < 0 ? std::countr_zero(limb) < -shift : shift + width > 127) {
      return false;
    }
    bits |= shift < 0 ? absl::uint128(limb >> -shift)
                      : absl::uint128(limb) << shift;
  }
  value = absl::int128(bits);
  if (negative) value = -value;
  return true;
}

std::array<int64_t, ExactSum::kWords> ExactSum::ToWords() const {
  ExactSum normal = *this;
  normal.Normalize();
  std::array<int64_t, kWords> words;
  std::copy(normal.limbs_.begin(), normal.limbs_.end(), words.begin());
  std::copy(normal.specials_.begin(), normal.specials_.end(),
            words.begin() + kLimbs);
  return words;
}

ExactSum ExactSum::FromWords(const std::array<int64_t, kWords>& words) {
  ExactSum sum;
  std::copy_n(words.begin(), kLimbs, sum.limbs_.begin());
  std::copy_n(words.begin() + kLimbs, kSpecials, sum.specials_.begin());
  sum.Normalize();
  return sum;
}

}  // namespace sherd
