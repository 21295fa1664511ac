#include "sherd/rpc/engine/worker_pool.h"

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/scoped_blocked.h"
#include "sherd/core/base/shared_work.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::Each;
using ::testing::HasSubstr;

Deadline InTime() { return Deadline::After(absl::Minutes(2)); }

TEST(WorkerPoolTest, RunsEveryTaskOnceAndReusesThreads) {
  WorkerPool pool({.concurrency = 2});
  constexpr int kTasks = 500;
  std::vector<std::atomic<int>> runs(kTasks);
  absl::BlockingCounter left(kTasks);
  for (int i = 0; i < kTasks; ++i) {
    pool.Submit([&, i](const absl::Status& status) {
      EXPECT_THAT(status, IsOk());
      ++runs[i];
      left.DecrementCount();
    });
  }
  left.Wait();
  for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
  EXPECT_EQ(pool.counts().threads, 0);
}

TEST(WorkerPoolTest, ATaskThatWaitsYieldsItsPlace) {
  // A stall would never pass in this test.
  WorkerPool pool({.concurrency = 1, .stall = absl::Hours(1)});
  absl::Notification second, first;
  pool.Submit([&](const absl::Status&) {
    {
      const ScopedBlocked blocked;
      const ScopedBlocked counts_once;
      second.WaitForNotification();
      EXPECT_EQ(pool.counts().blocked, 1);
    }
    EXPECT_EQ(pool.counts().blocked, 0);
    first.Notify();
  });
  pool.Submit([&](const absl::Status&) { second.Notify(); });
  first.WaitForNotification();
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
}

TEST(WorkerPoolTest, ATaskThatWorksYieldsItsPlaceAndCausesNoRefusal) {
  for (const int max_threads : {1, 2, 3}) {
    WorkerPool pool({.concurrency = 1,
                     .max_threads = max_threads,
                     .stall = absl::Hours(1)});
    absl::Notification working, go;
    absl::BlockingCounter left(2);
    pool.Submit([&](const absl::Status&) {
      const ScopedBlocked works(WaitFor::kWork);
      working.Notify();
      go.WaitForNotification();
    });
    working.WaitForNotification();
    std::atomic<int> ran{0};
    for (int i = 0; i < 2; ++i) {
      pool.Submit([&](const absl::Status& status) {
        EXPECT_THAT(status, IsOk());
        ++ran;
        left.DecrementCount();
      });
    }
    // With a spare thread they need not wait for it.
    while (max_threads > 1 && ran < 2) std::this_thread::yield();
    EXPECT_EQ(ran, max_threads > 1 ? 2 : 0);
    go.Notify();
    left.Wait();
    EXPECT_THAT(pool.Stop(InTime()), IsOk());
  }
}

// As many again as may run, not as many as there are threads.
TEST(WorkerPoolTest, FewThreadsWorkAtATime) {
  WorkerPool pool({.concurrency = 2, .stall = absl::Hours(1)});
  absl::Notification go;
  std::atomic<int> working{0};
  absl::BlockingCounter left(10);
  for (int i = 0; i < 10; ++i) {
    pool.Submit([&](const absl::Status& status) {
      EXPECT_THAT(status, IsOk());
      {
        const ScopedBlocked works(WaitFor::kWork);
        ++working;
        go.WaitForNotification();
      }
      left.DecrementCount();
    });
  }
  while (working < 4) std::this_thread::yield();
  EXPECT_EQ(pool.counts().blocked, 2);
  EXPECT_EQ(pool.counts().queued, 6);
  EXPECT_EQ(working, 4);
  go.Notify();
  left.Wait();
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
}

TEST(WorkerPoolTest, AStallGetsAThreadWithoutAScopedBlocked) {
  WorkerPool pool({.concurrency = 1, .stall = absl::Milliseconds(1)});
  absl::Notification last;
  absl::BlockingCounter waiting(5);
  for (int i = 0; i < 5; ++i) {
    pool.Submit([&](const absl::Status&) {
      waiting.DecrementCount();
      last.WaitForNotification();
    });
  }
  waiting.Wait();
  last.Notify();
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
}

TEST(WorkerPoolTest, ShortTasksAreLeftToAThreadAtWork) {
  WorkerPool pool(
      {.concurrency = 4, .backlog = absl::Hours(1), .pause = absl::Hours(1)});
  for (int round = 0; round < 20; ++round) {
    constexpr int kTasks = 5;
    std::vector<std::thread::id> ran_by(kTasks);
    absl::BlockingCounter left(kTasks);
    pool.Submit([&](const absl::Status&) {
      for (std::thread::id& by : ran_by) {
        pool.Submit([&](const absl::Status&) {
          by = std::this_thread::get_id();
          left.DecrementCount();
        });
      }
      ran_by[0] = std::this_thread::get_id();
    });
    left.Wait();
    EXPECT_THAT(ran_by, Each(ran_by[0]));
  }
  // And one that watches.
  EXPECT_LE(pool.counts().threads, 2);
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
}

// Each first task waits for the second one, without a ScopedBlocked.
void RunTasksThatWaitForTheNext(WorkerPoolOptions options) {
  options.concurrency = 2;
  options.stall = absl::Hours(1);
  WorkerPool pool(options);
  for (int round = 0; round < 20; ++round) {
    absl::Notification first, second;
    pool.Submit([&](const absl::Status&) {
      second.WaitForNotification();
      first.Notify();
    });
    pool.Submit([&](const absl::Status&) { second.Notify(); });
    first.WaitForNotification();
  }
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
}

TEST(WorkerPoolTest, ATaskBehindOneThatTakesLongGetsAThreadAfterAPause) {
  RunTasksThatWaitForTheNext(
      {.backlog = absl::Hours(1), .pause = absl::Milliseconds(1)});
}

TEST(WorkerPoolTest, ALongBacklogGetsAThreadAtOnce) {
  RunTasksThatWaitForTheNext(
      {.backlog = absl::Nanoseconds(1), .pause = absl::Hours(1)});
}

TEST(WorkerPoolTest, AThreadAtWorkTakesWhatIsLeftThoughAnotherIsAtWorkToo) {
  WorkerPool pool({.concurrency = 2,
                   .stall = absl::Hours(1),
                   .backlog = absl::Hours(1),
                   .pause = absl::Hours(1)});
  absl::Notification second_runs, second_may_end, third, first;
  pool.Submit([&](const absl::Status&) {
    {
      const ScopedBlocked blocked;
      second_runs.WaitForNotification();
    }
    pool.Submit([&](const absl::Status&) { third.Notify(); });
    second_may_end.Notify();
    third.WaitForNotification();
    first.Notify();
  });
  pool.Submit([&](const absl::Status&) {
    second_runs.Notify();
    second_may_end.WaitForNotification();
  });
  first.WaitForNotification();
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
}

TEST(WorkerPoolTest, RefusesTasksThatCanNeverRun) {
  WorkerPool pool({.concurrency = 4, .max_threads = 2, .max_queued = 3});
  absl::Notification go, refused;
  absl::BlockingCounter waiting(2);
  for (int i = 0; i < 2; ++i) {
    pool.Submit([&](const absl::Status& status) {
      EXPECT_THAT(status, IsOk());
      const ScopedBlocked blocked;
      waiting.DecrementCount();
      go.WaitForNotification();
    });
  }
  waiting.Wait();
  pool.Submit([&](const absl::Status& status) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 HasSubstr("all 2")));
    refused.Notify();
  });
  refused.WaitForNotification();
  go.Notify();
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
  bool told = false;
  pool.Submit([&](const absl::Status& status) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled));
    told = true;
  });
  EXPECT_TRUE(told);
}

TEST(WorkerPoolTest, RefusesMoreThanItMayQueue) {
  WorkerPool pool({.concurrency = 1, .max_queued = 2, .stall = absl::Hours(1)});
  absl::Notification go, began;
  pool.Submit([&](const absl::Status&) {
    began.Notify();
    go.WaitForNotification();
  });
  began.WaitForNotification();
  std::atomic<int> ran{0}, refused{0};
  for (int i = 0; i < 5; ++i) {
    pool.Submit(
        [&](const absl::Status& status) { ++(status.ok() ? ran : refused); });
  }
  EXPECT_EQ(refused, 3);
  EXPECT_EQ(pool.counts().queued, 2);
  go.Notify();
  while (ran < 2) std::this_thread::yield();
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
}

TEST(WorkerPoolTest, StopCountsTasksThatDoNotReturnAndLeavesThemAlone) {
  auto go = std::make_shared<absl::Notification>();
  auto ended = std::make_shared<absl::Notification>();
  {
    WorkerPool pool({.concurrency = 1});
    absl::Notification began;
    pool.Submit([&began, go, ended](const absl::Status&) {
      began.Notify();
      go->WaitForNotification();
      ended->Notify();
    });
    began.WaitForNotification();
    EXPECT_THAT(
        pool.Stop(Deadline::After(absl::ZeroDuration())),
        StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("1 handlers")));
  }
  go->Notify();
  ended->WaitForNotification();
}

TEST(WorkerPoolTest, IdleThreadsEndButOne) {
  WorkerPool pool({.concurrency = 8, .idle = absl::Milliseconds(1)});
  absl::Notification go;
  absl::BlockingCounter running(8);
  for (int i = 0; i < 8; ++i) {
    pool.Submit([&](const absl::Status&) {
      running.DecrementCount();
      go.WaitForNotification();
    });
  }
  running.Wait();
  EXPECT_GE(pool.counts().threads, 8);
  go.Notify();
  while (pool.counts().threads > 1) std::this_thread::yield();
  absl::Notification again;
  pool.Submit([&](const absl::Status&) { again.Notify(); });
  again.WaitForNotification();
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
}

// Work whose events the test supplies; one thread at a time takes part.
class FedWork final : public SharedWork {
 public:
  using Turn = std::function<void()>;

  bool WorkUntil(Wait& wait, Deadline) override {
    absl::MutexLock lock(&mutex_);
    if (visited_) return false;
    visited_ = true;
    while (wait.BeginSleep()) {
      changed_.WaitWithTimeout(&mutex_, absl::Milliseconds(1));
      wait.EndSleep();
      std::vector<Turn> turns = std::exchange(turns_, {});
      mutex_.Unlock();
      for (const Turn& turn : turns) Take(turn);
      mutex_.Lock();
    }
    visited_ = false;
    return true;
  }
  void Wake() override { changed_.SignalAll(); }
  bool RunsHere() const override {
    return defers && worker_ == std::this_thread::get_id();
  }
  void Defer(Turn task) override { deferred_.push_back(std::move(task)); }
  // Set before anything is fed.
  bool defers = false;
  void Feed(Turn turn) {
    absl::MutexLock lock(&mutex_);
    turns_.push_back(std::move(turn));
    changed_.SignalAll();
  }

 private:
  absl::Mutex mutex_;
  absl::CondVar changed_;
  void Take(const Turn& turn) {
    worker_ = std::this_thread::get_id();
    turn();
    worker_ = std::thread::id();
    for (const Turn& task : std::exchange(deferred_, {})) task();
  }

  bool visited_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Turn> turns_ ABSL_GUARDED_BY(mutex_);
  // The thread that runs a turn, and its tasks.
  std::atomic<std::thread::id> worker_{};
  std::vector<Turn> deferred_;
};

TEST(WorkerPoolTest, AThreadWithoutATaskTakesPartInTheWork) {
  const auto work = std::make_shared<FedWork>();
  WorkerPool pool({.concurrency = 2});
  pool.Share(work);
  // The first thread, which then has nothing to do.
  pool.Submit([](const absl::Status&) {});
  for (int round = 0; round < 50; ++round) {
    std::thread::id brought_by, ran_by;
    const BlockingObserver* observer = nullptr;
    absl::Notification done;
    work->Feed([&] {
      brought_by = std::this_thread::get_id();
      observer = BlockingObserver::OfThread();
      pool.Submit([&](const absl::Status& status) {
        EXPECT_THAT(status, IsOk());
        ran_by = std::this_thread::get_id();
        EXPECT_NE(BlockingObserver::OfThread(), nullptr);
        done.Notify();
      });
    });
    done.WaitForNotification();
    EXPECT_EQ(ran_by, brought_by);
    // Taking part in the work is not a task.
    EXPECT_EQ(observer, nullptr);
  }
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
}

TEST(WorkerPoolTest, AThreadThatContinuesLeavesTheSecondTaskToAnother) {
  const auto work = std::make_shared<FedWork>();
  WorkerPool pool({.concurrency = 2});
  pool.Share(work);
  pool.Submit([](const absl::Status&) {});
  absl::Notification first, second;
  work->Feed([&] {
    pool.Submit([&](const absl::Status&) { first.Notify(); });
    pool.Submit([&](const absl::Status&) { second.Notify(); });
    second.WaitForNotification();
  });
  first.WaitForNotification();
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
}

TEST(WorkerPoolTest, ThreadsAreWokenOnceTheWorkHasSubmittedAll) {
  const auto work = std::make_shared<FedWork>();
  work->defers = true;
  WorkerPool pool({.concurrency = 2});
  pool.Share(work);
  // The first thread, which then has nothing to do.
  pool.Submit([](const absl::Status&) {});
  for (int round = 0; round < 2; ++round) {
    absl::Notification done;
    work->Feed(
        [&] { pool.Submit([&](const absl::Status&) { done.Notify(); }); });
    done.WaitForNotification();
  }
  absl::BlockingCounter left(3);
  work->Feed([&] {
    for (int i = 0; i < 3; ++i) {
      pool.Submit([&](const absl::Status& status) {
        EXPECT_THAT(status, IsOk());
        left.DecrementCount();
      });
    }
    EXPECT_TRUE(pool.HasQueued());
    EXPECT_EQ(pool.counts().threads, 1);
  });
  left.Wait();
  EXPECT_FALSE(pool.HasQueued());
  // Only what the work submits waits for it.
  absl::Notification other;
  pool.Submit([&](const absl::Status&) { other.Notify(); });
  other.WaitForNotification();
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
}

TEST(WorkerPoolTest, TasksOfOthersReachAThreadThatTakesPart) {
  const auto work = std::make_shared<FedWork>();
  WorkerPool pool({.concurrency = 2});
  pool.Share(work);
  for (int round = 0; round < 200; ++round) {
    absl::BlockingCounter left(3);
    for (int i = 0; i < 3; ++i) {
      pool.Submit([&](const absl::Status&) { left.DecrementCount(); });
    }
    left.Wait();
  }
  EXPECT_THAT(pool.Stop(InTime()), IsOk());
}

// Each pool has a lock of its own.
TEST(WorkerPoolTest, AThreadThatTakesPartSubmitsToAnotherPool) {
  const auto work = std::make_shared<FedWork>();
  WorkerPool one({.concurrency = 2});
  WorkerPool other({.concurrency = 2});
  one.Share(work);
  for (int round = 0; round < 200; ++round) {
    absl::BlockingCounter left(2);
    work->Feed([&] {
      other.Submit([&](const absl::Status&) { left.DecrementCount(); });
    });
    // Wakes the thread that runs the above.
    one.Submit([&](const absl::Status&) { left.DecrementCount(); });
    left.Wait();
  }
  EXPECT_THAT(one.Stop(InTime()), IsOk());
  EXPECT_THAT(other.Stop(InTime()), IsOk());
}

}  // namespace
}  // namespace sherd::internal
