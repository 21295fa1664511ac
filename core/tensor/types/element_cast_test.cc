#include "sherd/core/tensor/types/element_cast.h"

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/float_types.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;

template <typename To, typename From>
To Cast(From value) {
  To result;
  CastElements(DTypeOf<From>(), &value, sizeof(From), DTypeOf<To>(), &result,
               1);
  return result;
}

template <typename To, typename From>
absl::Status Check(From value) {
  To result;
  return CastChecked(DTypeOf<From>(), &value, DTypeOf<To>(), &result);
}

TEST(CastElementsTest, SmallWholeNumbersSurviveEveryPairOfDTypes) {
  for (int32_t from = 0; from < kNumComputedDTypes; ++from) {
    for (int32_t to = 0; to < kNumComputedDTypes; ++to) {
      const int8_t original[3] = {0, 1, 2};
      alignas(16) std::byte a[48];
      alignas(16) std::byte b[48];
      int8_t back[3];
      const DType from_dtype = static_cast<DType>(from);
      const DType to_dtype = static_cast<DType>(to);
      const int64_t step = static_cast<int64_t>(SizeOf(from_dtype));
      CastElements(kInt8, original, 1, from_dtype, a, 3);
      CastElements(from_dtype, a, step, to_dtype, b, 3);
      CastElements(to_dtype, b, static_cast<int64_t>(SizeOf(to_dtype)), kInt8,
                   back, 3);
      const bool to_truth = from_dtype == kBool || to_dtype == kBool;
      EXPECT_THAT(back, ElementsAre(0, 1, to_truth ? 1 : 2))
          << from_dtype << " to " << to_dtype;
    }
  }
}

TEST(CastElementsTest, ReadsEveryStep) {
  const int16_t values[] = {1, -1, 2, -2, 3, -3};
  double result[3];
  CastElements(kInt16, values, 4, kFloat64, result, 3);
  EXPECT_THAT(result, ElementsAre(1, 2, 3));
  CastElements(kInt16, values + 5, -4, kFloat64, result, 3);
  EXPECT_THAT(result, ElementsAre(-3, -2, -1));
  CastElements(kInt16, values + 4, 0, kFloat64, result, 3);
  EXPECT_THAT(result, ElementsAre(3, 3, 3));
}

TEST(CastElementsTest, IntegersWrapAround) {
  EXPECT_EQ(Cast<uint8_t>(int32_t{-1}), 255);
  EXPECT_EQ(Cast<int8_t>(uint16_t{0x1ff}), -1);
  EXPECT_EQ(Cast<uint64_t>(int8_t{-2}), UINT64_MAX - 1);
  EXPECT_EQ(Cast<int32_t>((int64_t{5} << 32) + 7), 7);
}

TEST(CastElementsTest, FloatingPointToIntegerTruncatesAndStaysInRange) {
  EXPECT_EQ(Cast<int32_t>(2.9), 2);
  EXPECT_EQ(Cast<int32_t>(-2.9f), -2);
  EXPECT_EQ(Cast<uint8_t>(-0.5), 0);
  EXPECT_EQ(Cast<uint8_t>(-7.0), 0);
  EXPECT_EQ(Cast<uint8_t>(255.9), 255);
  EXPECT_EQ(Cast<uint8_t>(256.0), 255);
  EXPECT_EQ(Cast<int8_t>(-128.9), -128);
  EXPECT_EQ(Cast<int8_t>(-129.0), -128);
  EXPECT_EQ(Cast<int64_t>(0x1p63), INT64_MAX);
  EXPECT_EQ(Cast<int64_t>(-0x1p63), INT64_MIN);
  EXPECT_EQ(Cast<int64_t>(-HUGE_VAL), INT64_MIN);
  EXPECT_EQ(Cast<uint64_t>(0x1p64), UINT64_MAX);
  EXPECT_EQ(Cast<uint64_t>(0x1.fffffffffffffp63), 0xfffffffffffff800u);
  EXPECT_EQ(Cast<int16_t>(std::nanf("")), 0);
  EXPECT_EQ(Cast<int16_t>(BFloat16(1e30f)), INT16_MAX);
}

TEST(CastElementsTest, BoolIsWhetherTheValueIsNotZero) {
  EXPECT_TRUE(Cast<bool>(0.1));
  EXPECT_FALSE(Cast<bool>(-0.0));
  EXPECT_TRUE(Cast<bool>(std::nan("")));
  EXPECT_TRUE(Cast<bool>(int64_t{1} << 40));
  EXPECT_TRUE(Cast<bool>(std::complex<float>(0, 1)));
  EXPECT_FALSE(Cast<bool>(Float8E4M3(0.0f)));
  EXPECT_EQ(Cast<double>(true), 1.0);
}

TEST(CastElementsTest, AnyByteOfABoolOtherThanZeroIsTrue) {
  const uint8_t bytes[] = {0, 1, 2, 255};
  int32_t result[4];
  CastElements(kBool, bytes, 1, kInt32, result, 4);
  EXPECT_THAT(result, ElementsAre(0, 1, 1, 1));
}

TEST(CastElementsTest, NarrowFloatsRoundOnceFromDoubleAndFromIntegers) {
  // Rounding to float first would land on the tie, and then on 1.
  const double above_tie = 1 + 0x1p-11 + 0x1p-40;
  EXPECT_EQ(Cast<Float16>(above_tie).bits(), 0x3c01);
  EXPECT_EQ(Cast<Float16>(1 + 0x1p-11).bits(), 0x3c00);
  EXPECT_EQ(Cast<BFloat16>((int64_t{1} << 62) + (int64_t{1} << 54) + 1).bits(),
            BFloat16(0x1.02p62f).bits());
  EXPECT_EQ(Cast<float>(1.0 + 0x1p-24), 1.0f);
  EXPECT_EQ(Cast<Float8E4M3>(1000.0).bits(), 0x7f);
}

TEST(CastElementsTest, ComplexNumbersLoseTheirImaginaryPartAsRealOnes) {
  EXPECT_EQ(Cast<float>(std::complex<double>(2.5, 3)), 2.5f);
  EXPECT_EQ(Cast<int32_t>(std::complex<float>(-2.5f, 3)), -2);
  EXPECT_EQ(Cast<std::complex<double>>(std::complex<float>(1, -2)),
            std::complex<double>(1, -2));
  EXPECT_EQ(Cast<std::complex<float>>(Float16(3.0f)),
            std::complex<float>(3, 0));
}

TEST(CastCheckedTest, AcceptsWhatFits) {
  EXPECT_THAT(Check<uint8_t>(int64_t{255}), IsOk());
  EXPECT_THAT(Check<uint8_t>(255.9), IsOk());
  EXPECT_THAT(Check<int8_t>(-128.9), IsOk());
  EXPECT_THAT(Check<uint64_t>(UINT64_MAX), IsOk());
  EXPECT_THAT(Check<int64_t>(-0x1p63), IsOk());
  EXPECT_THAT(Check<bool>(1), IsOk());
  EXPECT_THAT(Check<bool>(0.0), IsOk());
  EXPECT_THAT(Check<float>(std::nan("")), IsOk());
  EXPECT_THAT(Check<float>(HUGE_VAL), IsOk());
  EXPECT_THAT(Check<Float8E4M3>(HUGE_VAL), IsOk());
  EXPECT_THAT(Check<Float16>(65519.0), IsOk());
  EXPECT_THAT(Check<double>(std::complex<float>(2, 0)), IsOk());
  EXPECT_THAT(Check<std::complex<float>>(std::complex<double>(2, 1e38)),
              IsOk());
}

TEST(CastCheckedTest, RefusesWhatDoesNotFitAndLeavesTheDestinationAlone) {
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, "not fit");
  EXPECT_THAT(Check<uint8_t>(256), refused);
  EXPECT_THAT(Check<uint8_t>(-1), refused);
  EXPECT_THAT(Check<uint64_t>(int8_t{-1}), refused);
  EXPECT_THAT(Check<int64_t>(UINT64_MAX), refused);
  EXPECT_THAT(Check<int8_t>(128.0), refused);
  EXPECT_THAT(Check<int64_t>(0x1p63), refused);
  EXPECT_THAT(Check<int32_t>(std::nan("")), refused);
  EXPECT_THAT(Check<int32_t>(HUGE_VAL), refused);
  EXPECT_THAT(Check<bool>(2), refused);
  EXPECT_THAT(Check<bool>(0.5), refused);
  EXPECT_THAT(Check<float>(1e39), refused);
  EXPECT_THAT(Check<Float16>(65520), refused);
  EXPECT_THAT(Check<Float8E4M3>(465.0), refused);
  EXPECT_THAT(Check<std::complex<float>>(1e39), refused);
  EXPECT_THAT(Check<std::complex<float>>(std::complex<double>(0, 1e39)),
              refused);
  EXPECT_THAT(Check<double>(std::complex<float>(2, 1)), refused);
  EXPECT_THAT(Check<double>(std::complex<float>(2, std::nanf(""))), refused);

  const double value = 300;
  int8_t destination = 42;
  EXPECT_THAT(CastChecked(kFloat64, &value, kInt8, &destination), refused);
  EXPECT_EQ(destination, 42);
}

TEST(CastCheckedTest, StoresTheConvertedValue) {
  const double value = -3.75;
  int16_t integer;
  ASSERT_THAT(CastChecked(kFloat64, &value, kInt16, &integer), IsOk());
  EXPECT_EQ(integer, -3);
  std::complex<double> number;
  ASSERT_THAT(CastChecked(kFloat64, &value, kComplex128, &number), IsOk());
  EXPECT_EQ(number, std::complex<double>(-3.75, 0));
}

}  // namespace
}  // namespace sherd
