#include "sherd/core/base/deviation.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sherd::internal {
namespace {

using Values = std::vector<std::optional<uint64_t>>;
using Ranks = std::vector<int>;

TEST(DeviationTest, NoRankDeviatesWhereAllAgree) {
  EXPECT_FALSE(FindDeviation(Values{}).Exists());
  EXPECT_FALSE(FindDeviation(Values{7}).Exists());
  EXPECT_FALSE(FindDeviation(Values{7, 7, std::nullopt, 7}).Exists());
}

TEST(DeviationTest, TheMinorityDeviatesWhereverItsRanksAre) {
  EXPECT_EQ(FindDeviation(Values{1, 7, 7}).Ranks(), Ranks{0});
  EXPECT_EQ(FindDeviation(Values{7, 1, 7}).Rank(), 1);
  EXPECT_EQ(FindDeviation(Values{7, 9, 7, 1, 7}).Ranks(), (Ranks{1, 3}));
  EXPECT_EQ(FindDeviation(Values{7, 9, 7, 1, 7}).Rank(), 1);
}

TEST(DeviationTest, NoRankDeviatesInADraw) {
  const Deviation two = FindDeviation(Values{1, 2});
  EXPECT_TRUE(two.Exists());
  EXPECT_TRUE(two.Ranks().empty());
  EXPECT_EQ(two.Rank(), std::nullopt);
  EXPECT_FALSE(FindDeviation(Values{2, 1, 2, 1, 3}).Rank());
}

TEST(DeviationTest, UnknownValuesDoNotCount) {
  EXPECT_FALSE(FindDeviation(Values{1, 2, std::nullopt}).Rank());
  EXPECT_EQ(FindDeviation(Values{1, 2, std::nullopt, 2}).Rank(), 0);
}

TEST(DeviationTest, ItsTextHasEachValueWithItsRanks) {
  const std::vector<std::optional<std::string>> values = {"float32", "int8",
                                                          "float32"};
  EXPECT_EQ(FindDeviation(values).ToText(
                "called", [&](int rank) { return *values[rank]; }),
            "rank 1 called int8; ranks 0, 2 called float32");
}

}  // namespace
}  // namespace sherd::internal
