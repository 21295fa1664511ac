#include "sherd/core/base/parallel_run.h"

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(ParallelRunTest, EveryPartIsDoneOnce) {
  for (const int threads : {0, 1, 2, 3, 8}) {
    for (const int64_t parts : {0, 1, 2, 7, 100}) {
      std::vector<std::atomic<int>> times(static_cast<size_t>(parts));
      ParallelRun run({.threads = threads, .name = "sherd-test"});
      EXPECT_THAT(run.Run(parts,
                          [&](int64_t part) {
                            ++times[static_cast<size_t>(part)];
                            return run.MadeProgress();
                          }),
                  IsOk());
      for (const auto& count : times) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ParallelRunTest, OneThreadIsTheCallingOne) {
  for (const auto& [threads, parts] : {std::pair{1, 5}, {5, 1}}) {
    ParallelRun run({.threads = threads, .name = "sherd-test"});
    EXPECT_THAT(run.Run(parts,
                        [own = std::this_thread::get_id()](int64_t) {
                          EXPECT_EQ(std::this_thread::get_id(), own);
                          return absl::OkStatus();
                        }),
                IsOk());
  }
}

TEST(ParallelRunTest, SoManyThreadsWorkAtTheSameTime) {
  constexpr int kThreads = 4;
  // Each part waits for all others.
  absl::Barrier* const barrier = new absl::Barrier(kThreads);
  ParallelRun run({.threads = kThreads, .name = "sherd-test"});
  EXPECT_THAT(run.Run(kThreads,
                      [&](int64_t) {
                        if (barrier->Block()) delete barrier;
                        return absl::OkStatus();
                      }),
              IsOk());
}

TEST(ParallelRunTest, OthersWorkWhileTheCallerDoesSomethingElse) {
  absl::Notification is_done;
  ParallelRun run({.threads = 2, .name = "sherd-test"});
  const auto work = [&](int64_t part) -> absl::Status {
    EXPECT_EQ(part, 0);
    is_done.Notify();
    return absl::DataLossError("damaged");
  };
  run.Start(1, work);
  is_done.WaitForNotification();
  EXPECT_THAT(run.Finish(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
}

TEST(ParallelRunTest, TheCallerDoesWhatNoOtherThreadHasDone) {
  for (const int threads : {1, 2, 5}) {
    std::vector<std::atomic<int>> times(20);
    ParallelRun run({.threads = threads, .name = "sherd-test"});
    const auto work = [&, own = std::this_thread::get_id()](int64_t part) {
      ++times[static_cast<size_t>(part)];
      EXPECT_TRUE(threads > 1 || std::this_thread::get_id() == own);
      return run.MadeProgress();
    };
    run.Start(20, work);
    EXPECT_THAT(run.Finish(), IsOk());
    for (const auto& count : times) EXPECT_EQ(count, 1);
  }
}

TEST(ParallelRunTest, WorkThatIsNotWaitedForEndsWithIt) {
  absl::Notification has_begun;
  std::atomic<bool> has_ended = false;
  const auto work = [&](ParallelRun& run) -> absl::Status {
    has_begun.Notify();
    while (run.MadeProgress().ok()) sched_yield();
    has_ended = true;
    return absl::OkStatus();
  };
  {
    ParallelRun* self = nullptr;
    const auto part = [&](int64_t) { return work(*self); };
    ParallelRun run({.threads = 2, .name = "sherd-test"});
    self = &run;
    run.Start(1, part);
    has_begun.WaitForNotification();
  }
  EXPECT_TRUE(has_ended);
}

TEST(ParallelRunTest, ThreadsHaveTheRankOfTheCaller) {
  std::thread([] {
    SetThreadLogRank(5);
    absl::Barrier* const barrier = new absl::Barrier(3);
    std::vector<int> ranks(3);
    ParallelRun run({.threads = 3, .name = "sherd-test"});
    EXPECT_THAT(run.Run(3,
                        [&](int64_t part) {
                          if (barrier->Block()) delete barrier;
                          ranks[static_cast<size_t>(part)] = LogRank();
                          return absl::OkStatus();
                        }),
                IsOk());
    EXPECT_THAT(ranks, Each(5));
  }).join();
}

TEST(ParallelRunTest, TheFirstErrorEndsAllParts) {
  for (const int64_t failing : {0, 1, 2}) {
    absl::Barrier* const barrier = new absl::Barrier(3);
    std::atomic<int> begun = 0;
    ParallelRun run({.threads = 3, .name = "sherd-test"});
    EXPECT_THAT(run.Run(100,
                        [&](int64_t part) -> absl::Status {
                          ++begun;
                          // Three parts run, each on another thread.
                          if (barrier->Block()) delete barrier;
                          if (part == failing)
                            return absl::DataLossError("damaged");
                          while (true) {
                            // Ends by the error of the other part alone.
                            const absl::Status status = run.MadeProgress();
                            if (!status.ok())
                              return absl::CancelledError("stopped");
                            sched_yield();
                          }
                        }),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
    EXPECT_EQ(begun, 3) << "no part begins after an error";
  }
}

TEST(ParallelRunTest, ProgressOfAllThreadsIsReportedOnTheCallingOne) {
  const std::thread::id own = std::this_thread::get_id();
  // The part of the other thread goes on once the caller, which has nothing
  // more to do, has reported a step of it.
  absl::Notification caller_is_done, was_reported;
  int64_t reports = 0;
  ParallelRun run({.threads = 2, .name = "sherd-test", .progress = [&] {
                     EXPECT_EQ(std::this_thread::get_id(), own);
                     if (caller_is_done.HasBeenNotified() && ++reports == 1) {
                       was_reported.Notify();
                     }
                     return absl::OkStatus();
                   }});
  absl::Barrier* const barrier = new absl::Barrier(2);
  EXPECT_THAT(run.Run(2,
                      [&](int64_t) -> absl::Status {
                        if (barrier->Block()) delete barrier;
                        if (std::this_thread::get_id() == own) {
                          caller_is_done.Notify();
                          return absl::OkStatus();
                        }
                        caller_is_done.WaitForNotification();
                        EXPECT_THAT(run.MadeProgress(), IsOk());
                        was_reported.WaitForNotification();
                        return absl::OkStatus();
                      }),
              IsOk());
  EXPECT_GE(reports, 1);
}

TEST(ParallelRunTest, AnErrorOfProgressEndsTheWork) {
  for (const int threads : {1, 3}) {
    ParallelRun run({.threads = threads, .name = "sherd-test", .progress = [] {
                       return absl::UnavailableError("rank 1 died");
                     }});
    EXPECT_THAT(run.Run(3,
                        [&](int64_t) -> absl::Status {
                          while (true) {
                            SHERD_RETURN_IF_ERROR(run.MadeProgress());
                            sched_yield();
                          }
                        }),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1")));
  }
}

}  // namespace
}  // namespace sherd
