#include "sherd/serialization/checkpoint/series/retention.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr auto kWhole = StepState::kWhole;

// Whole ones of these numbers.
std::vector<StepState> Steps(const std::vector<int64_t>& numbers) {
  std::vector<StepState> steps;
  for (const int64_t number : numbers) steps.push_back({number, kWhole});
  return steps;
}

TEST(RetentionTest, WithoutARuleAllStay) {
  EXPECT_THAT(ExpiredSteps({}, 50, Steps({10, 20, 30, 40, 50})), IsEmpty());
  EXPECT_THAT(ExpiredSteps({.keep_every = 20}, 30, Steps({10, 20, 30})),
              IsEmpty());
}

TEST(RetentionTest, TheLastStayAndMultiples) {
  const auto steps = Steps({0, 5, 10, 15, 20, 25});
  EXPECT_THAT(ExpiredSteps({.keep_last = 1}, 25, steps),
              ElementsAre(0, 5, 10, 15, 20));
  EXPECT_THAT(ExpiredSteps({.keep_last = 2}, 25, steps),
              ElementsAre(0, 5, 10, 15));
  EXPECT_THAT(ExpiredSteps({.keep_last = 5}, 25, steps), ElementsAre(0));
  EXPECT_THAT(ExpiredSteps({.keep_last = 6}, 25, steps), IsEmpty());
  EXPECT_THAT(ExpiredSteps({.keep_last = 7}, 25, steps), IsEmpty());
  EXPECT_THAT(ExpiredSteps({.keep_last = 2, .keep_every = 10}, 25, steps),
              ElementsAre(5, 15));
  EXPECT_THAT(ExpiredSteps({.keep_last = 1, .keep_every = 1}, 25, steps),
              IsEmpty());
}

TEST(RetentionTest, TheSavedStepCountsAlsoIfItIsNotListed) {
  EXPECT_THAT(ExpiredSteps({.keep_last = 3}, 30, Steps({10, 20})), IsEmpty());
  EXPECT_THAT(ExpiredSteps({.keep_last = 2}, 30, Steps({5, 10, 20})),
              ElementsAre(5, 10));
}

// As after a rollback.
TEST(RetentionTest, LaterStepsStayAndDoNotCount) {
  const auto steps = Steps({10, 20, 30, 100, 200, 300});
  EXPECT_THAT(ExpiredSteps({.keep_last = 2}, 30, steps), ElementsAre(10));
  EXPECT_THAT(ExpiredSteps({.keep_last = 1}, 30, steps), ElementsAre(10, 20));
  EXPECT_THAT(ExpiredSteps({.keep_last = 3}, 10, steps), IsEmpty());
}

TEST(RetentionTest, OnlyWholeStepsCount) {
  std::vector<StepState> steps = Steps({10, 20, 30, 40, 50});
  steps[3].state = StepState::kDamaged;
  steps[2].state = StepState::kIncomplete;
  EXPECT_THAT(ExpiredSteps({.keep_last = 2}, 50, steps), ElementsAre(10));
  EXPECT_THAT(ExpiredSteps({.keep_last = 1}, 50, steps),
              ElementsAre(10, 20, 30, 40));
}

TEST(RetentionTest, AMultipleThatIsDamagedGoesAndOneThatIsIncompleteStays) {
  std::vector<StepState> steps = Steps({10, 20, 30});
  const RetentionRule rule = {.keep_last = 1, .keep_every = 10};
  steps[0].state = StepState::kDamaged;
  steps[1].state = StepState::kIncomplete;
  EXPECT_THAT(ExpiredSteps(rule, 30, steps), ElementsAre(10));
}

TEST(RetentionTest, StepsThatCannotBeReadNowStay) {
  std::vector<StepState> steps = Steps({10, 20, 30});
  steps[0].state = StepState::kUnknown;
  EXPECT_THAT(ExpiredSteps({.keep_last = 1}, 30, steps), ElementsAre(20));
}

}  // namespace
}  // namespace sherd
