#ifndef SHERD_CORE_TENSOR_FLOAT_TYPES_H_
#define SHERD_CORE_TENSOR_FLOAT_TYPES_H_

#include <bit>
#include <compare>
#include <cstdint>
#include <type_traits>

namespace sherd {
namespace internal {

// How a floating-point number of 8 or 16 bits divides its bits: sign, exponent,
// mantissa, from the top.
struct Float16Format {
  using Bits = uint16_t;
  static constexpr int kMantissaBits = 10;
  static constexpr int kBias = 15;
  static constexpr bool kHasInfinity = true;
  static constexpr Bits kMaxFinite = 0x7bff;
};
struct BFloat16Format {
  using Bits = uint16_t;
  static constexpr int kMantissaBits = 7;
  static constexpr int kBias = 127;
  static constexpr bool kHasInfinity = true;
  static constexpr Bits kMaxFinite = 0x7f7f;
};
struct Float8E4M3Format {
  using Bits = uint8_t;
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
  static constexpr bool kHasInfinity = false;
  static constexpr Bits kMaxFinite = 0x7e;
};
struct Float8E5M2Format {
  using Bits = uint8_t;
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
  static constexpr bool kHasInfinity = true;
  static constexpr Bits kMaxFinite = 0x7b;
};

// Narrows to float by "round to odd": an inexact result gets an odd last bit.
// Rounding it again to at most 22 bits, to nearest even, then gives what
// rounding the double once would have given (Boldo and Melquiond, "When double
// rounding is odd", 2005).
constexpr float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (static_cast<double>(nearest) == value || value != value) return nearest;
  if ((bits & 1) != 0) return nearest;
  const bool rounded_away =
      (static_cast<double>(nearest) > value) == (value > 0);
  return std::bit_cast<float>(rounded_away ? bits - 1 : bits + 1);
}

// The same from an integer.
template <typename T>
constexpr float IntegerToOdd(T value) {
  const bool negative = value < T{0};
  uint64_t magnitude = static_cast<uint64_t>(value);
  if (negative) magnitude = ~magnitude + 1;
  // A double holds 53 bits; the truncated bits are kept as a sticky bit.
  constexpr uint64_t kExact = uint64_t{1} << 52;
  double scale = 1;
  while (magnitude >= kExact) {
    magnitude = (magnitude >> 1) | (magnitude & 1);
    scale *= 2;
  }
  const double exact = static_cast<double>(magnitude) * scale;
  return RoundToOdd(negative ? -exact : exact);
}

template <typename Format>
constexpr typename Format::Bits EncodeSmallFloat(float value) {
  constexpr int kMantissaBits = Format::kMantissaBits;
  constexpr int kDropped = 23 - kMantissaBits;
  constexpr uint32_t kMaxFinite = Format::kMaxFinite;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 31) << (8 * sizeof(typename Format::Bits) - 1);
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t result = 0;
  if (magnitude > 0x7f800000) {
    if constexpr (Format::kHasInfinity) {
      // Keeps the part of the payload that fits and sets the quiet bit.
      result = (kMaxFinite + 1) | (uint32_t{1} << (kMantissaBits - 1)) |
               ((magnitude & 0x7fffff) >> kDropped);
    } else {
      result = kMaxFinite + 1;
    }
  } else if (constexpr uint32_t kMinNormal = uint32_t{128 - Format::kBias}
                                             << 23;
             Format::kBias == 127 || magnitude >= kMinNormal) {
    uint32_t rebased = magnitude;
    if constexpr (Format::kBias != 127) {
      rebased -= uint32_t{127 - Format::kBias} << 23;
    }
    rebased +=
        ((uint32_t{1} << (kDropped - 1)) - 1) + ((rebased >> kDropped) & 1);
    result = rebased >> kDropped;
    // The next code after the largest number is infinity where there is one,
    // and NaN otherwise.
    if (result > kMaxFinite) result = kMaxFinite + 1;
  } else {
    const int exponent = static_cast<int>(magnitude >> 23);
    const int shift = kDropped + (128 - Format::kBias) - exponent;
    if (exponent != 0 && shift <= 24) {
      const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
      const uint32_t half = (uint32_t{1} << (shift - 1)) - 1;
      result = (mantissa + half + ((mantissa >> shift) & 1)) >> shift;
    }
  }
  return static_cast<typename Format::Bits>(sign | result);
}

template <typename Format>
constexpr float DecodeSmallFloat(typename Format::Bits bits) {
  constexpr int kMantissaBits = Format::kMantissaBits;
  constexpr int kTotalBits = 8 * sizeof(typename Format::Bits);
  constexpr uint32_t kSignMask = uint32_t{1} << (kTotalBits - 1);
  const uint32_t sign = (bits & kSignMask) << (32 - kTotalBits);
  const uint32_t magnitude = bits & (kSignMask - 1);
  uint32_t result = 0;
  if (magnitude > Format::kMaxFinite) {
    result = 0x7f800000 | (magnitude << (23 - kMantissaBits));
    if constexpr (!Format::kHasInfinity) result |= 0x7fc00000;
  } else if constexpr (Format::kBias == 127) {
    result = magnitude << (23 - kMantissaBits);
  } else if (magnitude >> kMantissaBits == 0) {
    // A subnormal is its mantissa times the smallest one: exact in float.
    constexpr float kSmallest = std::bit_cast<float>(
        uint32_t{128 - Format::kBias - kMantissaBits} << 23);
    result = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * kSmallest);
  } else {
    result = (magnitude << (23 - kMantissaBits)) +
             (uint32_t{127 - Format::kBias} << 23);
  }
  return std::bit_cast<float>(sign | result);
}

// A number that is stored in 8 or 16 bits and computed with as float.
//
// Values. Conversion to float is exact. Conversion from any arithmetic type
// rounds once, to nearest, ties to even; beyond the largest number the result
// is infinity, or NaN where the format has no infinity. Zeros and NaNs keep
// their sign.
//
// Comparison is that of the values: NaN is unequal to itself, -0 equals 0.
template <typename Format>
class SmallFloat {
 public:
  using Bits = typename Format::Bits;
  // Bits of precision, the implicit one included.
  static constexpr int kDigits = Format::kMantissaBits + 1;

  SmallFloat() = default;

  template <typename T>
  requires std::is_arithmetic_v<T>
  explicit constexpr SmallFloat(T value) : bits_(Encode(value)) {}

  static constexpr SmallFloat FromBits(Bits bits) {
    SmallFloat result(0.0f);
    result.bits_ = bits;
    return result;
  }

  // The largest finite number.
  static constexpr SmallFloat Max() { return FromBits(Format::kMaxFinite); }

  constexpr Bits bits() const { return bits_; }

  explicit constexpr operator float() const {
    return DecodeSmallFloat<Format>(bits_);
  }
  explicit constexpr operator double() const {
    return DecodeSmallFloat<Format>(bits_);
  }

  friend constexpr bool operator==(SmallFloat a, SmallFloat b) {
    return static_cast<float>(a) == static_cast<float>(b);
  }
  friend constexpr auto operator<=>(SmallFloat a, SmallFloat b) {
    return static_cast<float>(a) <=> static_cast<float>(b);
  }

 private:
  template <typename T>
  static constexpr Bits Encode(T value) {
    if constexpr (std::is_same_v<T, float>) {
      return EncodeSmallFloat<Format>(value);
    } else if constexpr (std::is_floating_point_v<T>) {
      return EncodeSmallFloat<Format>(RoundToOdd(static_cast<double>(value)));
    } else {
      return EncodeSmallFloat<Format>(IntegerToOdd(value));
    }
  }

  Bits bits_;
};

}  // namespace internal

// IEEE 754 binary16.
using Float16 = internal::SmallFloat<internal::Float16Format>;

// The upper half of an IEEE 754 binary32.
using BFloat16 = internal::SmallFloat<internal::BFloat16Format>;

// The "fn" variant of the Open Compute Project's 8-bit format (OFP8, 2023):
// no infinities, NaN is 0x7f or 0xff, the largest number is 448.
using Float8E4M3 = internal::SmallFloat<internal::Float8E4M3Format>;

// OFP8 E5M2: infinities and NaNs as in IEEE 754, the largest number is 57344.
using Float8E5M2 = internal::SmallFloat<internal::Float8E5M2Format>;

static_assert(sizeof(Float16) == 2 && std::is_trivially_copyable_v<Float16>);
static_assert(sizeof(BFloat16) == 2 && std::is_trivially_copyable_v<BFloat16>);
static_assert(sizeof(Float8E4M3) == 1);
static_assert(sizeof(Float8E5M2) == 1);

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_FLOAT_TYPES_H_
