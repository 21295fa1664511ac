#include "sherd/rpc/future.h"

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/scoped_blocked.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;

constexpr absl::StatusCode kCancelled = absl::StatusCode::kCancelled;

TEST(FutureTest, AllHandlesGetTheResult) {
  const Promise<std::string> promise;
  const Future<std::string> future = promise.future();
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
  const Future<std::string> copy = future;
  EXPECT_FALSE(future.Ready());
  EXPECT_TRUE(promise.Set("text"));
  EXPECT_TRUE(future.Ready() && copy.Ready());
  EXPECT_THAT(future.Wait(), IsOkAndHolds("text"));
  EXPECT_THAT(future.Wait(), IsOkAndHolds("text"));
  EXPECT_THAT(copy.Wait(absl::ZeroDuration()), IsOkAndHolds("text"));
  EXPECT_THAT(promise.future().Wait(), IsOkAndHolds("text"));
}

TEST(FutureTest, AMovedFromFutureStaysValid) {
  const Promise<int> promise;
  Future<int> future = promise.future();
  // NOLINTNEXTLINE(performance-move-const-arg): it is what is tested.
  const Future<int> other = std::move(future);
  promise.Set(3);
  // NOLINTNEXTLINE(bugprone-use-after-move)
  EXPECT_THAT(future.Wait(), IsOkAndHolds(3));
  EXPECT_THAT(other.Wait(), IsOkAndHolds(3));
}

TEST(FutureTest, FunctionsReturnResultsAndErrors) {
  const auto f = [](int value) -> Future<int> {
    if (value < 0) return absl::OutOfRangeError("negative");
    return absl::StatusOr<int>(value);
  };
  EXPECT_TRUE(f(1).Ready());
  EXPECT_THAT(f(1).Wait(), IsOkAndHolds(1));
  EXPECT_THAT(f(-1).Wait(),
              StatusIs(absl::StatusCode::kOutOfRange, "negative"));
  const Future<void> done = absl::OkStatus();
  EXPECT_THAT(done.Wait(), IsOk());
}

TEST(FutureTest, WaitsForAtMostTheTimeout) {
  const Promise<void> promise;
  const Future<void> future = promise.future();
  EXPECT_THAT(future.Wait(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "within 0"));
  EXPECT_THAT(future.Wait(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "within 1ms"));
  EXPECT_THAT(future.Wait(-absl::InfiniteDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_FALSE(future.Ready());
  promise.Set(absl::OkStatus());
  EXPECT_THAT(future.Wait(absl::InfiniteDuration()), IsOk());
}

TEST(FutureTest, OnReadyRunsOnceOnTheCompletingThreadOrAtOnce) {
  const Promise<int> promise;
  const Future<int> future = promise.future();
  std::vector<int> seen;
  std::thread::id ran_on;
  const auto token = std::make_shared<int>(0);
  future.OnReady([&, token](const absl::StatusOr<int>& result) {
    seen.push_back(*result);
    ran_on = std::this_thread::get_id();
  });
  future.OnReady(
      [&](const absl::StatusOr<int>& result) { seen.push_back(*result + 1); });
  EXPECT_THAT(seen, ElementsAre());
  std::thread completing([&] { promise.Set(1); });
  const std::thread::id completed_on = completing.get_id();
  completing.join();
  EXPECT_THAT(seen, ElementsAre(1, 2));
  EXPECT_EQ(ran_on, completed_on);
  EXPECT_EQ(token.use_count(), 1) << "what ran is released";
  future.OnReady([&](const absl::StatusOr<int>& result) {
    seen.push_back(*result + 2);
    ran_on = std::this_thread::get_id();
  });
  EXPECT_THAT(seen, ElementsAre(1, 2, 3));
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST(FutureTest, CancelIsTheResultAtOnce) {
  const Promise<int> promise;
  const Future<int> future = promise.future();
  int asked = 0;
  std::optional<absl::Status> seen;
  const auto token = std::make_shared<int>(0);
  promise.OnCancel([&asked, token] { ++asked; });
  future.OnReady(
      [&](const absl::StatusOr<int>& result) { seen = result.status(); });
  EXPECT_EQ(asked, 0);
  EXPECT_TRUE(future.Cancel());
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(token.use_count(), 1);
  EXPECT_THAT(future.Wait(), StatusIs(kCancelled, "by its caller"));
  ASSERT_TRUE(seen.has_value());
  EXPECT_THAT(*seen, StatusIs(kCancelled));
  EXPECT_FALSE(future.Cancel());
  EXPECT_FALSE(promise.Set(5)) << "comes too late";
  EXPECT_THAT(future.Wait(), StatusIs(kCancelled));
  // A function that is added later is called as well.
  promise.OnCancel([&] { ++asked; });
  EXPECT_EQ(asked, 2);
}

TEST(FutureTest, CancelAfterTheResultChangesNothing) {
  const Promise<int> promise;
  const auto token = std::make_shared<int>(0);
  int asked = 0;
  promise.OnCancel([&asked, token] { ++asked; });
  EXPECT_TRUE(promise.Set(1));
  EXPECT_EQ(token.use_count(), 1);
  EXPECT_FALSE(promise.future().Cancel());
  EXPECT_FALSE(promise.Set(2));
  EXPECT_THAT(promise.future().Wait(), IsOkAndHolds(1));
  // An operation that ends as cancelled was not asked to end.
  const Promise<int> other;
  other.OnCancel([&] { ++asked; });
  other.Set(absl::CancelledError("on its own"));
  EXPECT_EQ(asked, 0);
}

TEST(FutureTest, APromiseThatIsDroppedIsAnErrorAndNoHang) {
  std::optional<Promise<int>> promise(std::in_place);
  const Future<int> future = promise->future();
  std::optional<Promise<int>> copy = promise;
  bool ran = false;
  future.OnReady([&](const absl::StatusOr<int>& result) {
    ran = true;
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInternal, "Promise"));
  });
  promise.reset();
  EXPECT_FALSE(future.Ready());
  copy.reset();
  EXPECT_TRUE(ran);
  EXPECT_THAT(future.Wait(),
              StatusIs(absl::StatusCode::kInternal, "copies destroyed"));
}

TEST(FutureTest, AMovedPromiseDoesNotKeepItsOldPlace) {
  Promise<void> promise;
  const Future<void> future = promise.future();
  std::thread dropping([taken = std::move(promise)] {});
  EXPECT_THAT(future.Wait(), StatusIs(absl::StatusCode::kInternal));
  dropping.join();
}

TEST(FutureTest, DroppingEveryFutureIsAllowed) {
  const Promise<int> promise;
  bool ran = false;
  promise.future().OnReady([&](const absl::StatusOr<int>&) { ran = true; });
  EXPECT_TRUE(promise.Set(1));
  EXPECT_TRUE(ran);
}

TEST(FutureTest, ACallbackMayUseTheFuture) {
  const Promise<int> promise;
  const Future<int> future = promise.future();
  int inner = 0;
  future.OnReady([&, future](const absl::StatusOr<int>&) {
    EXPECT_TRUE(future.Ready());
    EXPECT_FALSE(future.Cancel());
    EXPECT_THAT(future.Wait(), IsOkAndHolds(4));
    future.OnReady([&](const absl::StatusOr<int>& result) { inner = *result; });
  });
  promise.Set(4);
  EXPECT_EQ(inner, 4);
}

// A callback destroys the object that holds the handles.
TEST(FutureTest, ACallbackMayDropTheHandlesThatRunIt) {
  using Value = std::shared_ptr<int>;
  // Whether the result exists after `drop`, and the next callback gets it.
  const auto outlives = [](Future<Value>& future,
                           const std::function<void()>& drop) {
    bool alive = false;
    future.OnReady([&, drop](const absl::StatusOr<Value>& result) {
      const std::weak_ptr<int> value = result.value_or(nullptr);
      drop();
      alive = !result.ok() || !value.expired();
    });
    return alive;
  };
  const auto made = [] {
    return absl::StatusOr<Value>(std::make_shared<int>(1));
  };

  auto ready = std::make_unique<Future<Value>>(made());
  EXPECT_TRUE(outlives(*ready, [&] { ready.reset(); }));

  auto promise = std::make_unique<Promise<Value>>();
  std::weak_ptr<int> during;
  bool seen = false;
  promise->future().OnReady([&](const absl::StatusOr<Value>& result) {
    during = *result;
    promise.reset();
  });
  promise->future().OnReady(
      [&](const absl::StatusOr<Value>&) { seen = !during.expired(); });
  promise->Set(made());
  EXPECT_TRUE(seen);
  EXPECT_TRUE(during.expired());

  auto operation = std::make_unique<Promise<Value>>();
  auto cancelled = std::make_unique<Future<Value>>(operation->future());
  absl::StatusCode code = absl::StatusCode::kOk;
  cancelled->OnReady([&](const absl::StatusOr<Value>& result) {
    cancelled.reset();
    operation.reset();
    code = result.status().code();
  });
  EXPECT_TRUE(cancelled->Cancel());
  EXPECT_EQ(code, kCancelled);
}

// Otherwise it would depend on the callback which threads are woken.
TEST(FutureDeathTest, ACallbackThatThrowsEndsTheProcess) {
  EXPECT_DEATH(
      {
        const Promise<int> promise;
        promise.future().OnReady(
            [](const absl::StatusOr<int>&) { throw std::runtime_error("x"); });
        try {
          promise.Set(1);
        } catch (const std::exception&) {
        }
      },
      "terminate");
}

class CountingObserver final : public internal::BlockingObserver {
 public:
  void BeginBlocked(internal::WaitFor what) override {
    EXPECT_EQ(what, internal::WaitFor::kCalls);
    ++begun;
  }
  void EndBlocked() override { ++ended; }
  int begun = 0;
  int ended = 0;
};

TEST(FutureTest, OnlyAWaitThatBlocksIsReported) {
  CountingObserver observer;
  internal::BlockingObserver::OfThread() = &observer;
  const Promise<int> promise;
  const Future<int> future = promise.future();
  EXPECT_FALSE(future.Wait(absl::ZeroDuration()).ok());
  EXPECT_EQ(observer.begun, 1);
  EXPECT_EQ(observer.ended, 1);
  promise.Set(1);
  EXPECT_TRUE(future.Wait().ok() && future.Wait(absl::Hours(1)).ok());
  EXPECT_EQ(observer.begun, 1) << "another thread would start for nothing";
  internal::BlockingObserver::OfThread() = nullptr;
}

// A callback that is added when there is a result is not queued.
TEST(FutureTest, CallbacksRunInOrderUntilThereIsAResult) {
  const Promise<int> promise;
  const Future<int> future = promise.future();
  std::vector<std::string> seen;
  future.OnReady([&](const absl::StatusOr<int>&) {
    seen.push_back("first");
    future.OnReady(
        [&](const absl::StatusOr<int>&) { seen.push_back("within"); });
  });
  future.OnReady([&](const absl::StatusOr<int>&) { seen.push_back("second"); });
  promise.Set(1);
  EXPECT_THAT(seen, ElementsAre("first", "within", "second"));
}

TEST(FutureTest, WakesThreadsThatWait) {
  const Promise<int> promise;
  std::atomic<int> sum = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t, future = promise.future()] {
      sum += t % 2 == 0 ? *future.Wait() : *future.Wait(absl::Hours(1));
    });
  }
  promise.Set(10);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, 80);
}

TEST(FutureTest, ManyThreadsCompeteAndOneWins) {
  constexpr int kThreads = 6;
  for (int round = 0; round < 300; ++round) {
    auto promise = std::make_unique<Promise<int>>();
    const Future<int> future = promise->future();
    std::atomic<int> wins = 0, cancels = 0, asked = 0, ready = 0;
    promise->OnCancel([&] { ++asked; });
    absl::Barrier* const start = new absl::Barrier(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t, own = *promise] {
        if (start->Block()) delete start;
        future.OnReady([&](const absl::StatusOr<int>&) { ++ready; });
        if (t % 2 == 0 ? own.Set(t) : future.Cancel()) {
          ++wins;
          if (t % 2 == 1) ++cancels;
        }
        const absl::StatusOr<int> result = future.Wait();
        EXPECT_TRUE(result.ok() || result.status().code() == kCancelled);
      });
    }
    promise.reset();
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(wins, 1);
    ASSERT_EQ(ready, kThreads);
    ASSERT_EQ(asked, cancels);
    ASSERT_EQ(future.Wait().ok(), cancels == 0);
  }
}

}  // namespace
}  // namespace sherd
