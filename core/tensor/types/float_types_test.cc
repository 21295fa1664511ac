#include "sherd/core/tensor/float_types.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "gtest/gtest.h"

namespace sherd {
namespace {

static_assert(!std::is_convertible_v<float, Float16>, "only explicitly");
static_assert(!std::is_convertible_v<Float16, float>, "only explicitly");

// The value of the bits by the definition of the format, computed by another
// method than the code under test. NaN for codes that are not a number.
template <typename T>
double Reference(uint32_t bits, int mantissa_bits, int bias, bool infinity) {
  const int total = 8 * sizeof(T);
  const int exponent_bits = total - 1 - mantissa_bits;
  const bool negative = (bits >> (total - 1)) != 0;
  const int exponent =
      static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const int mantissa = static_cast<int>(bits & ((1u << mantissa_bits) - 1));
  const bool top = exponent == (1 << exponent_bits) - 1;
  double value;
  if (infinity && top) {
    value = mantissa == 0 ? HUGE_VAL : std::nan("");
  } else if (!infinity && top && mantissa == (1 << mantissa_bits) - 1) {
    value = std::nan("");
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - mantissa_bits);
  } else {
    value = std::ldexp((1 << mantissa_bits) + mantissa,
                       exponent - bias - mantissa_bits);
  }
  return negative ? -value : value;
}

template <typename T, int kMantissaBits, int kBias, bool kInfinity,
          uint32_t kMaxFiniteBits>
struct Case {
  using Type = T;
  static constexpr uint32_t kMaxFinite = kMaxFiniteBits;
  static constexpr uint32_t kCodes = 1u << (8 * sizeof(T));
  static constexpr uint32_t kSign = kCodes / 2;
  static constexpr bool kHasInfinity = kInfinity;
  static double Value(uint32_t bits) {
    return Reference<T>(bits, kMantissaBits, kBias, kInfinity);
  }
};

template <typename C>
class SmallFloatTest : public ::testing::Test {};

using Cases = ::testing::Types<
    Case<Float16, 10, 15, true, 0x7bff>, Case<BFloat16, 7, 127, true, 0x7f7f>,
    Case<Float8E4M3, 3, 7, false, 0x7e>, Case<Float8E5M2, 2, 15, true, 0x7b>>;
TYPED_TEST_SUITE(SmallFloatTest, Cases);

TYPED_TEST(SmallFloatTest, EveryCodeDecodesAsTheFormatDefines) {
  using T = typename TypeParam::Type;
  for (uint32_t code = 0; code < TypeParam::kCodes; ++code) {
    const float value =
        static_cast<float>(T::FromBits(static_cast<typename T::Bits>(code)));
    const double expected = TypeParam::Value(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, expected) << code;
    }
    EXPECT_EQ(std::signbit(value), code >= TypeParam::kSign) << code;
  }
}

TYPED_TEST(SmallFloatTest, EveryCodeSurvivesAConversionToFloat) {
  using T = typename TypeParam::Type;
  for (uint32_t code = 0; code < TypeParam::kCodes; ++code) {
    const T original = T::FromBits(static_cast<typename T::Bits>(code));
    const T back(static_cast<float>(original));
    if (std::isnan(TypeParam::Value(code))) {
      EXPECT_TRUE(std::isnan(TypeParam::Value(back.bits()))) << code;
      EXPECT_EQ(back.bits() >= TypeParam::kSign, code >= TypeParam::kSign);
    } else {
      EXPECT_EQ(back.bits(), code);
      EXPECT_EQ(T(static_cast<double>(original)).bits(), code);
    }
  }
}

// Between every number and the next, on both sides of zero: just below the
// middle, the middle itself, just above.
TYPED_TEST(SmallFloatTest, EveryGapRoundsToNearestAndTiesToEven) {
  using T = typename TypeParam::Type;
  for (uint32_t code = 0; code < TypeParam::kMaxFinite; ++code) {
    for (uint32_t sign : {0u, TypeParam::kSign}) {
      const double near_zero = TypeParam::Value(sign | code);
      const double away = TypeParam::Value(sign | (code + 1));
      const double middle = (near_zero + away) / 2;
      const uint32_t even = sign | (code % 2 == 0 ? code : code + 1);
      ASSERT_EQ(T(middle).bits(), even) << code;
      ASSERT_EQ(T(static_cast<float>(middle)).bits(), even) << code;
      // One step of double from the tie: rounding through float would land on
      // the tie first.
      ASSERT_EQ(T(std::nextafter(middle, near_zero)).bits(), sign | code);
      ASSERT_EQ(T(std::nextafter(middle, away)).bits(), sign | (code + 1));
      const float tie = static_cast<float>(middle);
      ASSERT_EQ(T(std::nextafterf(tie, static_cast<float>(near_zero))).bits(),
                sign | code);
      ASSERT_EQ(T(std::nextafterf(tie, static_cast<float>(away))).bits(),
                sign | (code + 1));
    }
  }
}

TYPED_TEST(SmallFloatTest, BeyondTheLargestNumberIsInfinityOrNaN) {
  using T = typename TypeParam::Type;
  const uint32_t overflow = TypeParam::kMaxFinite + 1;
  const double max = TypeParam::Value(TypeParam::kMaxFinite);
  const double step = max - TypeParam::Value(TypeParam::kMaxFinite - 1);
  const uint32_t tie =
      TypeParam::kMaxFinite % 2 == 0 ? TypeParam::kMaxFinite : overflow;
  EXPECT_EQ(T(std::nextafter(max + step / 2, 0.0)).bits(),
            TypeParam::kMaxFinite);
  EXPECT_EQ(T(max + step / 2).bits(), tie);
  EXPECT_EQ(T(std::nextafter(max + step / 2, HUGE_VAL)).bits(), overflow);
  for (double huge : {1e300, static_cast<double>(HUGE_VAL)}) {
    EXPECT_EQ(T(huge).bits(), overflow);
    EXPECT_EQ(T(-huge).bits(), TypeParam::kSign | overflow);
  }
  EXPECT_EQ(T(HUGE_VALF).bits(), overflow);
  EXPECT_EQ(static_cast<double>(T::Max()), max);
}

TYPED_TEST(SmallFloatTest, NaNStaysNaNWithItsSign) {
  using T = typename TypeParam::Type;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float signaling = std::bit_cast<float>(0x7f800001u);
  for (float value : {nan, signaling}) {
    const T positive(value);
    const T negative(-value);
    EXPECT_TRUE(std::isnan(TypeParam::Value(positive.bits())));
    EXPECT_TRUE(std::isnan(TypeParam::Value(negative.bits())));
    EXPECT_LT(positive.bits(), TypeParam::kSign);
    EXPECT_GE(negative.bits(), TypeParam::kSign);
    EXPECT_NE(positive, positive);
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(T(std::nan("")))));
}

TYPED_TEST(SmallFloatTest, TinyNumbersBecomeZeroOfTheirSign) {
  using T = typename TypeParam::Type;
  for (double tiny : {1e-300, 4.9e-324}) {
    EXPECT_EQ(T(tiny).bits(), 0);
    EXPECT_EQ(T(-tiny).bits(), TypeParam::kSign);
  }
  EXPECT_EQ(T(-0.0f).bits(), TypeParam::kSign);
  EXPECT_EQ(T(-0.0f), T(0.0f));
}

TEST(Float8E4M3Test, ConstantsOfThePublishedFormat) {
  EXPECT_EQ(static_cast<float>(Float8E4M3::FromBits(0x01)), 0x1p-9f);
  EXPECT_EQ(static_cast<float>(Float8E4M3::FromBits(0x08)), 0x1p-6f);
  EXPECT_EQ(static_cast<float>(Float8E4M3::FromBits(0x38)), 1.0f);
  EXPECT_EQ(static_cast<float>(Float8E4M3::FromBits(0x7e)), 448.0f);
  EXPECT_EQ(Float8E4M3(464.0f).bits(), 0x7e);
  EXPECT_EQ(Float8E4M3(465.0f).bits(), 0x7f);
  EXPECT_EQ(Float8E4M3(-HUGE_VALF).bits(), 0xff);
}

TEST(Float8E5M2Test, ConstantsOfThePublishedFormat) {
  EXPECT_EQ(static_cast<float>(Float8E5M2::FromBits(0x01)), 0x1p-16f);
  EXPECT_EQ(static_cast<float>(Float8E5M2::FromBits(0x3c)), 1.0f);
  EXPECT_EQ(static_cast<float>(Float8E5M2::FromBits(0x7b)), 57344.0f);
  EXPECT_EQ(Float8E5M2(HUGE_VALF).bits(), 0x7c);
}

TEST(Float16Test, ConstantsOfTheStandard) {
  EXPECT_EQ(Float16(1.0f).bits(), 0x3c00);
  EXPECT_EQ(Float16(-2.0f).bits(), 0xc000);
  EXPECT_EQ(Float16(1.0f / 3).bits(), 0x3555);
  EXPECT_EQ(static_cast<float>(Float16::FromBits(0x0001)), 0x1p-24f);
  EXPECT_EQ(static_cast<float>(Float16::Max()), 65504.0f);
}

TEST(BFloat16Test, ConstantsOfTheFormat) {
  EXPECT_EQ(BFloat16(1.0f).bits(), 0x3f80);
  EXPECT_EQ(BFloat16(3.1415927f).bits(), 0x4049);
  EXPECT_EQ(static_cast<float>(BFloat16::FromBits(0x0001)), 0x1p-133f);
}

TEST(IntegerConversionTest, IntegersRoundOnce) {
  EXPECT_EQ(Float16(65519).bits(), 0x7bff);
  EXPECT_EQ(Float16(65520).bits(), 0x7c00);
  EXPECT_EQ(Float16(int64_t{-3}), Float16(-3.0f));
  EXPECT_EQ(Float16(true), Float16(1.0f));
  // A tie of bfloat16 that a double cannot distinguish from the number above
  // it.
  const int64_t tie = (int64_t{1} << 62) + (int64_t{1} << 54);
  EXPECT_EQ(static_cast<float>(BFloat16(tie)), 0x1p62f);
  EXPECT_EQ(static_cast<float>(BFloat16(tie + 1)), 0x1.02p62f);
  EXPECT_EQ(static_cast<float>(BFloat16(tie - 1)), 0x1p62f);
  EXPECT_EQ(static_cast<float>(BFloat16(-(tie + 1))), -0x1.02p62f);
  EXPECT_EQ(static_cast<float>(BFloat16(std::numeric_limits<int64_t>::min())),
            -0x1p63f);
  EXPECT_EQ(static_cast<float>(BFloat16(std::numeric_limits<uint64_t>::max())),
            0x1p64f);
}

TEST(SmallFloatOrderTest, ComparisonIsThatOfTheValues) {
  EXPECT_LT(Float16(-1.0f), Float16(0.5f));
  EXPECT_GT(Float8E4M3(3.0f), Float8E4M3(2.0f));
  EXPECT_LE(BFloat16(2.0f), BFloat16(2.0f));
}

}  // namespace
}  // namespace sherd
