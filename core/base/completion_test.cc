#include "sherd/core/base/completion.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace sherd::internal {
namespace {

TEST(CompletionTest, TheFirstOutcomeStays) {
  Completion<int> completion;
  EXPECT_FALSE(completion.IsDone());
  EXPECT_EQ(completion.AwaitFor(absl::ZeroDuration()), nullptr);
  EXPECT_TRUE(completion.TryFinish(1));
  EXPECT_FALSE(completion.TryFinish(2));
  EXPECT_TRUE(completion.IsDone());
  EXPECT_EQ(completion.Await(), 1);
  ASSERT_NE(completion.AwaitFor(absl::InfiniteDuration()), nullptr);
  EXPECT_EQ(*completion.AwaitFor(absl::InfiniteDuration()), 1);
}

TEST(CompletionDeathTest, OneThatNobodyElseCompletesEndsOnce) {
  Completion<int> completion;
  completion.Finish(1);
  EXPECT_DEATH(completion.Finish(2), "ended twice");
}

TEST(CompletionTest, ContinuationsRunInOrderAndOnceAndAreReleased) {
  Completion<int> completion;
  std::vector<int> order;
  const auto token = std::make_shared<int>(0);
  completion.OnFinish([&, token](const int& got) { order.push_back(got); });
  completion.OnFinish([&](const int& got) { order.push_back(got + 1); });
  EXPECT_TRUE(order.empty());
  EXPECT_TRUE(completion.TryFinish(10));
  EXPECT_FALSE(completion.TryFinish(20));
  completion.OnFinish([&](const int& got) { order.push_back(got + 2); });
  EXPECT_EQ(order, (std::vector<int>{10, 11, 12}));
  EXPECT_EQ(token.use_count(), 1);
}

TEST(CompletionTest, OneOfManyThreadsCompletesItAndAllSeeThat) {
  for (int round = 0; round < 200; ++round) {
    Completion<int> completion;
    std::atomic<int> winners = 0;
    std::atomic<int> sum = 0;
    std::vector<std::thread> threads;
    for (int t = 1; t <= 4; ++t) {
      threads.emplace_back([&, t] {
        completion.OnFinish([&](const int& got) { sum += got; });
        if (completion.TryFinish(t)) ++winners;
        sum -= completion.Await();
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(winners, 1);
    ASSERT_EQ(sum, 0);
  }
}

}  // namespace
}  // namespace sherd::internal
