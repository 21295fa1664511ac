#include "sherd/core/base/completion.h"

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/shared_work.h"

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

TEST(CompletionDeathTest, AnOperationWithOneCompleterEndsOnce) {
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

// Work that one thread at a time takes part in, by `turn`.
class TurnWork final : public SharedWork {
 public:
  explicit TurnWork(std::function<bool(Wait&)> turn) : turn_(std::move(turn)) {}
  bool WorkUntil(Wait& wait, Deadline) override { return turn_(wait); }
  void Wake() override { ++wakes; }

  std::atomic<int> wakes{0};

 private:
  const std::function<bool(Wait&)> turn_;
};

TEST(CompletionTest, AWaitingThreadMayBringTheOutcomeItself) {
  Completion<int> completion;
  bool worked = false;
  TurnWork work([&](SharedWork::Wait& wait) {
    EXPECT_FALSE(wait.has_ended());
    completion.Finish(3);
    EXPECT_TRUE(wait.has_ended());
    return worked = true;
  });
  const int* const got = completion.AwaitWith(work, Deadline::Infinite());
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(*got, 3);
  EXPECT_TRUE(worked);
  EXPECT_EQ(work.wakes, 0);
  worked = false;
  EXPECT_EQ(completion.AwaitWith(work, Deadline::Infinite()), got);
  EXPECT_FALSE(worked);
}

TEST(CompletionTest, AnotherThreadEndsTheWaitOfOneThatSleepsInItsWork) {
  Completion<int> completion;
  std::thread other;
  TurnWork work([&](SharedWork::Wait& wait) {
    EXPECT_TRUE(wait.BeginSleep());
    other = std::thread([&] { completion.Finish(4); });
    while (!wait.has_ended()) std::this_thread::yield();
    other.join();
    wait.EndSleep();
    EXPECT_FALSE(wait.BeginSleep());
    return true;
  });
  const int* const got = completion.AwaitWith(work, Deadline::Infinite());
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(*got, 4);
  EXPECT_EQ(work.wakes, 1);
}

TEST(CompletionTest, WithoutAPlaceAtTheWorkItWaitsAsOthersDo) {
  Completion<int> completion;
  std::thread other;
  TurnWork work([&](SharedWork::Wait&) {
    other = std::thread([&] { completion.Finish(5); });
    return false;
  });
  const int* const got = completion.AwaitWith(work, Deadline::Infinite());
  other.join();
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(*got, 5);

  Completion<int> never;
  TurnWork nothing([](SharedWork::Wait&) { return false; });
  EXPECT_EQ(never.AwaitWith(nothing, Deadline::After(absl::Milliseconds(1))),
            nullptr);
}

}  // namespace
}  // namespace sherd::internal
