#include "sherd/tools/bench/harness/statistics.h"

#include "gtest/gtest.h"

namespace sherd {
namespace {

TEST(SummarizeTest, TakesTheMiddleOfAnOddNumberWhateverTheOrder) {
  const Summary summary = Summarize({9.0, 1.0, 4.0, 2.5, 100.0});
  EXPECT_EQ(summary.median, 4.0);
  EXPECT_EQ(summary.min, 1.0);
  EXPECT_EQ(summary.max, 100.0);
  EXPECT_EQ(summary.n, 5);
}

TEST(SummarizeTest, TakesTheMeanOfTheTwoMiddleValuesOfAnEvenNumber) {
  const Summary summary = Summarize({8.0, 1.0, 3.0, 4.0});
  EXPECT_EQ(summary.median, 3.5);
  EXPECT_EQ(summary.n, 4);
}

TEST(SummarizeTest, OfOneValueIsThatValue) {
  const Summary summary = Summarize({0.25});
  EXPECT_EQ(summary.median, 0.25);
  EXPECT_EQ(summary.min, 0.25);
  EXPECT_EQ(summary.max, 0.25);
  EXPECT_EQ(summary.n, 1);
}

TEST(SummarizeTest, OfNothingIsZero) {
  const Summary summary = Summarize({});
  EXPECT_EQ(summary.n, 0);
  EXPECT_EQ(summary.median, 0.0);
}

}  // namespace
}  // namespace sherd
