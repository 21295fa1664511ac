#include "sherd/core/tensor/kernels/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace sherd {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kMax = std::numeric_limits<double>::max();
constexpr double kTiny = std::numeric_limits<double>::denorm_min();

double SumOf(const std::vector<double>& values) {
  ExactSum sum;
  sum.Add(absl::MakeConstSpan(values));
  ExactSum one_by_one;
  for (const double value : values) one_by_one.Add(value);
  EXPECT_EQ(std::bit_cast<uint64_t>(sum.Round()),
            std::bit_cast<uint64_t>(one_by_one.Round()));
  return sum.Round();
}

TEST(ExactSumTest, RoundsTheTrueSumOnce) {
  EXPECT_EQ(SumOf({}), 0);
  EXPECT_EQ(SumOf({0.1, 0.2, 0.3}), 0.6);
  EXPECT_EQ(SumOf({1e100, 1, -1e100}), 1);
  EXPECT_EQ(SumOf({1, 0x1p-53}), 1);                   // a tie, to even
  EXPECT_EQ(SumOf({1, 0x1p-53, kTiny}), 1 + 0x1p-52);  // just above it
  EXPECT_EQ(SumOf({1 + 0x1p-52, 0x1p-53}), 1 + 0x1p-51);
  EXPECT_EQ(SumOf({-1, -0x1p-53, -kTiny}), -1 - 0x1p-52);
  EXPECT_EQ(SumOf({kTiny, kTiny, kTiny}), 3 * kTiny);
  EXPECT_EQ(SumOf({0x1p-1022, -kTiny}), 0x1p-1022 - kTiny);
  EXPECT_EQ(SumOf(std::vector<double>(10000, 0.1)), 1000.0000000000000555);
}

TEST(ExactSumTest, IntermediateSumsMayExceedADouble) {
  EXPECT_EQ(SumOf({kMax, kMax, -kMax}), kMax);
  EXPECT_EQ(SumOf({kMax, kMax}), kInf);
  EXPECT_EQ(SumOf({-kMax, -kMax}), -kInf);
  EXPECT_EQ(SumOf({kMax, 0x1p969}), kMax);
  EXPECT_EQ(SumOf({kMax, 0x1p970}), kInf);
  EXPECT_EQ(SumOf(std::vector<double>(5000, kMax)), kInf);
}

TEST(ExactSumTest, HasTheRulesOfNanInfinityAndZero) {
  EXPECT_TRUE(std::isnan(SumOf({1, kNan})));
  EXPECT_TRUE(std::isnan(SumOf({kInf, -kInf})));
  EXPECT_EQ(SumOf({kInf, 1, kInf}), kInf);
  EXPECT_EQ(SumOf({-kInf, kMax}), -kInf);
  EXPECT_FALSE(std::signbit(SumOf({-0.0, -0.0})));
  EXPECT_FALSE(std::signbit(SumOf({5, -5})));
}

// Numbers of one kind: like those of a network, of any exponent, subnormal, or
// large and small together.
std::vector<double> Draw(std::mt19937_64& random, int kind) {
  std::vector<double> values(1 + random() % 5000);
  for (double& value : values) {
    const auto integer = static_cast<int64_t>(random());
    switch (kind) {
      case 0:
        value = std::normal_distribution<double>()(random);
        break;
      case 1:
        value = std::bit_cast<double>(integer);
        break;
      case 2:
        value = std::ldexp(static_cast<double>(integer),
                           -1074 - static_cast<int>(random() % 60));
        break;
      default:
        value = std::ldexp(static_cast<double>(integer),
                           static_cast<int>(random() % 2000) - 1060);
    }
    if (!std::isfinite(value)) value = 1;
  }
  return values;
}

TEST(ExactSumTest, HasTheSameBitsInEveryOrderAndEveryPartition) {
  std::mt19937_64 random(20);
  for (int round = 0; round < 400; ++round) {
    std::vector<double> values = Draw(random, round % 4);
    const double expected = SumOf(values);
    std::shuffle(values.begin(), values.end(), random);
    ExactSum total;
    auto words = ExactSum().ToWords();
    for (absl::Span<const double> rest = values; !rest.empty();) {
      const size_t n = 1 + random() % rest.size();
      ExactSum part;
      part.Add(rest.subspan(0, n));
      total.Add(part);
      const auto of_part = part.ToWords();
      for (size_t i = 0; i < words.size(); ++i) words[i] += of_part[i];
      rest.remove_prefix(n);
    }
    ASSERT_EQ(total.Round(), expected) << "round " << round;
    ASSERT_EQ(ExactSum::FromWords(words).Round(), expected);
    for (double& value : values) value = -value;
    ExactSum opposite;
    opposite.Add(absl::MakeConstSpan(values));
    ASSERT_EQ(opposite.Round(), -expected);
    total.Add(opposite);
    ASSERT_EQ(total.Round(), 0);
    ASSERT_EQ(SumOf({values[0], values.back()}), values[0] + values.back());
  }
}

TEST(ExactSumTest, AddsIntegersOf128Bits) {
  std::mt19937_64 random(21);
  for (int round = 0; round < 400; ++round) {
    const absl::int128 a =
        absl::MakeInt128(static_cast<int64_t>(random()), random()) >>
        (1 + static_cast<int>(random() % 126));
    const absl::int128 b =
        absl::MakeInt128(static_cast<int64_t>(random()), random()) >>
        (1 + static_cast<int>(random() % 126));
    ExactSum sum;
    sum.Add(a);
    sum.Add(b);
    absl::int128 got;
    ASSERT_TRUE(sum.ToInteger(got));
    ASSERT_EQ(got, a + b);
    ASSERT_NEAR(sum.Round(), static_cast<double>(a + b),
                std::fabs(static_cast<double>(a + b)) * 0x1p-52);
    sum.Add(0.5);
    ASSERT_FALSE(sum.ToInteger(got));
    sum.Add(-0.5);
    ASSERT_TRUE(sum.ToInteger(got));
    sum.Add(0x1p127);
    sum.Add(0x1p127);
    ASSERT_FALSE(sum.ToInteger(got));
  }
  ExactSum sum;
  sum.Add(kInf);
  absl::int128 got;
  EXPECT_FALSE(sum.ToInteger(got));
}

}  // namespace
}  // namespace sherd
