#include "sherd/core/base/units.h"

#include <limits>

#include "gtest/gtest.h"

namespace sherd {
namespace {

TEST(UnitsTest, BytesHaveThreeDigitsAndAUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1000), "1.00 kB");
  EXPECT_EQ(FormatBytes(15'360), "15.4 kB");
  EXPECT_EQ(FormatBytes(548'105'171), "548 MB");
  EXPECT_EQ(FormatBytes(999'499'999), "999 MB");
  EXPECT_EQ(FormatBytes(999'500'000), "1.00 GB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "9.22 EB");
}

TEST(UnitsTest, CountsAreGroupedByThousands) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(548105171), "548,105,171");
  EXPECT_EQ(FormatCount(-100), "-100");
  EXPECT_EQ(FormatCount(-1234567), "-1,234,567");
}

TEST(UnitsTest, TimesAreInMillisecondsBelowOneSecond) {
  EXPECT_EQ(FormatSeconds(0.00084), "0.8 ms");
  EXPECT_EQ(FormatSeconds(0.5), "500.0 ms");
  EXPECT_EQ(FormatSeconds(4.556), "4.56 s");
}

TEST(UnitsTest, ADurationIsInSecondsOrHasUnits) {
  EXPECT_EQ(ParseDuration("30"), absl::Seconds(30));
  EXPECT_EQ(ParseDuration("0.5"), absl::Milliseconds(500));
  EXPECT_EQ(ParseDuration("8s"), absl::Seconds(8));
  EXPECT_EQ(ParseDuration("1m30s"), absl::Seconds(90));
  EXPECT_EQ(ParseDuration("-1"), absl::Seconds(-1));
  for (const char* text : {"", "s", "8 s", "8x", "nan", "soon"}) {
    EXPECT_EQ(ParseDuration(text), std::nullopt) << text;
  }
}

TEST(UnitsTest, WidthCountsCharactersAndNotBytes) {
  EXPECT_EQ(DisplayWidth("rows → grid"), 11);
  EXPECT_EQ(DisplayWidth(""), 0);
}

TEST(UnitsTest, ShortenKeepsBothEnds) {
  EXPECT_EQ(Shorten("h.0.attn.c_attn.weight", 30), "h.0.attn.c_attn.weight");
  EXPECT_EQ(Shorten("h.0.attn.c_attn.weight", 11), "h.0.a…eight");
  EXPECT_EQ(Shorten("äöüßéèêë", 5), "äö…êë");
  EXPECT_EQ(DisplayWidth(Shorten("h.0.attn.c_attn.weight", 8)), 8);
}

TEST(FormatRanksTest, JoinsNeighbours) {
  EXPECT_EQ(FormatRanks({}), "");
  EXPECT_EQ(FormatRanks({4}), "4");
  EXPECT_EQ(FormatRanks({7, 0, 1, 2, 9, 10}), "0-2, 7, 9, 10");
}

}  // namespace
}  // namespace sherd
