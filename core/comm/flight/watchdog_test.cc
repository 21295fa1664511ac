#include "sherd/core/comm/flight/watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/logging.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Beyond which a test has failed; nothing waits for it otherwise.
constexpr absl::Duration kLong = absl::Seconds(60);

WatchdogOptions Quick(std::function<void(const FlightDump&)> write) {
  return {.period = absl::Milliseconds(1),
          .grace = absl::Milliseconds(20),
          .write = std::move(write)};
}

void Ignore(const FlightDump&) {}

Collective Overdue(uint64_t sequence) {
  return {.op = CollectiveOp::kAllReduce,
          .sequence = sequence,
          .deadline = Deadline::After(absl::ZeroDuration())};
}

int NumThreads() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

// A thread that was joined may still be listed for a moment.
bool ComesDownTo(int threads) {
  const Deadline deadline = Deadline::After(kLong);
  while (NumThreads() > threads && !deadline.HasPassed())
    std::this_thread::yield();
  return NumThreads() <= threads;
}

TEST(WatchdogTest, AbortsAGroupWhoseOperationIsOverdueAndDumpsItAsItWas) {
  FlightRecorder recorder(16);
  absl::Notification written, aborted;
  std::optional<FlightDump> dump;
  absl::Status cause;
  Watchdog watchdog(recorder, Quick([&](const FlightDump& taken) {
                      dump = taken;
                      written.Notify();
                    }));
  const GroupTag group(
      recorder, {.name = "g", .rank = 1, .size = 2, .world_ranks = {4, 6}});
  const Watchdog::Watch watch = watchdog.Add(group, [&](absl::Status status) {
    cause = std::move(status);
    aborted.Notify();
  });
  const FlightTicket fine = recorder.Begin(group, {.sequence = 16});
  const FlightTicket stuck = recorder.Begin(group, Overdue(17));
  ASSERT_TRUE(aborted.WaitForNotificationWithTimeout(kLong));
  EXPECT_THAT(cause,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "group \"g\", rank 1, all_reduce #17: it did not end "
                       "within 0."));
  const ErrorInfo info = GetErrorInfo(cause);
  EXPECT_EQ(info.group, "g");
  EXPECT_EQ(info.operation, "all_reduce");
  EXPECT_EQ(info.sequence, 17u);
  recorder.End(stuck, absl::StatusCode::kDeadlineExceeded);
  recorder.End(fine, absl::StatusCode::kOk);
  ASSERT_TRUE(written.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(dump->reason, FlightReason::kTimeout);
  EXPECT_EQ(dump->rank, 6);
  ASSERT_EQ(dump->snapshot.entries.size(), 2u);
  EXPECT_TRUE(dump->snapshot.entries[1].outstanding());
}

TEST(WatchdogTest, LeavesOthersAlone) {
  FlightRecorder recorder(16);
  Watchdog watchdog(recorder, Quick(Ignore));
  const GroupTag slow(recorder, {.name = "slow"});
  const GroupTag stuck(recorder, {.name = "stuck"});
  std::atomic<int> aborts_of_slow = 0;
  absl::Notification aborted;
  const Watchdog::Watch watch_slow =
      watchdog.Add(slow, [&](absl::Status) { aborts_of_slow.fetch_add(1); });
  const Watchdog::Watch watch_stuck =
      watchdog.Add(stuck, [&](absl::Status) { aborted.Notify(); });
  const FlightTicket endless = recorder.Begin(slow, {});
  const FlightTicket later =
      recorder.Begin(slow, {.deadline = Deadline::After(kLong)});
  recorder.End(recorder.Begin(slow, Overdue(1)), absl::StatusCode::kOk);
  const FlightTicket overdue = recorder.Begin(stuck, Overdue(1));
  // Seen in the same looks as the others, which would have been reported first.
  ASSERT_TRUE(aborted.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(aborts_of_slow.load(), 0);
  for (const FlightTicket& ticket : {endless, later, overdue}) {
    recorder.End(ticket, absl::StatusCode::kOk);
  }
}

TEST(WatchdogTest, AbortsAGroupOnce) {
  FlightRecorder recorder(16);
  Watchdog watchdog(recorder, Quick(Ignore));
  const GroupTag first(recorder, {.name = "first"});
  const GroupTag second(recorder, {.name = "second"});
  std::atomic<int> aborts = 0;
  absl::Notification first_aborted, second_aborted;
  const Watchdog::Watch watch_first = watchdog.Add(first, [&](absl::Status) {
    if (aborts.fetch_add(1) == 0) first_aborted.Notify();
  });
  const FlightTicket stuck = recorder.Begin(first, Overdue(1));
  ASSERT_TRUE(first_aborted.WaitForNotificationWithTimeout(kLong));
  // It stays overdue for as many looks as another one needs.
  const Watchdog::Watch watch_second =
      watchdog.Add(second, [&](absl::Status) { second_aborted.Notify(); });
  const FlightTicket other = recorder.Begin(second, Overdue(1));
  ASSERT_TRUE(second_aborted.WaitForNotificationWithTimeout(kLong));
  EXPECT_EQ(aborts.load(), 1);
  recorder.End(stuck, absl::StatusCode::kOk);
  recorder.End(other, absl::StatusCode::kOk);
}

TEST(WatchdogTest, OperationsThatEndLateButWithinTheGraceAreNotAborted) {
  FlightRecorder recorder(16);
  Watchdog watchdog(recorder, {.period = absl::Milliseconds(1),
                               .grace = absl::Hours(1),
                               .write = Ignore});
  const GroupTag group(recorder, {.name = "g"});
  std::atomic<bool> was_aborted = false;
  Watchdog::Watch watch =
      watchdog.Add(group, [&](absl::Status) { was_aborted.store(true); });
  const FlightTicket late = recorder.Begin(group, Overdue(1));
  absl::SleepFor(absl::Milliseconds(30));
  recorder.End(late, absl::StatusCode::kOk);
  watch.Stop();
  EXPECT_FALSE(was_aborted.load());
}

TEST(WatchdogTest, EndOfTheWatchWaitsForTheAbort) {
  FlightRecorder recorder(16);
  Watchdog watchdog(recorder, Quick(Ignore));
  const GroupTag group(recorder, {.name = "g"});
  absl::Notification inside, may_leave;
  std::atomic<bool> left = false;
  Watchdog::Watch watch = watchdog.Add(group, [&](absl::Status) {
    inside.Notify();
    may_leave.WaitForNotification();
    left.store(true);
  });
  const FlightTicket stuck = recorder.Begin(group, Overdue(1));
  ASSERT_TRUE(inside.WaitForNotificationWithTimeout(kLong));
  std::thread releaser([&] { may_leave.Notify(); });
  watch.Stop();
  EXPECT_TRUE(left.load());
  releaser.join();
  recorder.End(stuck, absl::StatusCode::kOk);
}

TEST(WatchdogTest, TheAbortMayEndItsOwnWatchAndBeginAnother) {
  FlightRecorder recorder(16);
  absl::Notification again;
  std::optional<Watchdog::Watch> watch, next;
  {
    Watchdog watchdog(recorder, Quick(Ignore));
    const GroupTag group(recorder, {.name = "g"});
    const GroupTag survivors(recorder, {.name = "survivors"});
    FlightTicket second;
    absl::Mutex mutex;
    {
      absl::MutexLock lock(&mutex);
      watch = watchdog.Add(group, [&](absl::Status) {
        absl::MutexLock inner(&mutex);
        watch.reset();
        second = recorder.Begin(survivors, Overdue(1));
        next = watchdog.Add(survivors, [&](absl::Status) { again.Notify(); });
      });
    }
    const FlightTicket stuck = recorder.Begin(group, Overdue(1));
    EXPECT_TRUE(again.WaitForNotificationWithTimeout(kLong));
    next.reset();
    recorder.End(stuck, absl::StatusCode::kOk);
    recorder.End(second, absl::StatusCode::kOk);
  }
}

TEST(WatchdogTest, AWatchThatALogSinkEndsIsNotAborted) {
  FlightRecorder recorder(16);
  absl::Notification written;
  std::atomic<bool> was_aborted = false;
  std::optional<Watchdog::Watch> watch;
  absl::Mutex mutex;
  SetLogSink([&](const LogEntry&) {
    absl::MutexLock lock(&mutex);
    watch.reset();
  });
  {
    Watchdog watchdog(recorder,
                      Quick([&](const FlightDump&) { written.Notify(); }));
    const GroupTag group(recorder, {.name = "g"});
    {
      absl::MutexLock lock(&mutex);
      watch = watchdog.Add(group, [&](absl::Status) { was_aborted = true; });
    }
    const FlightTicket stuck = recorder.Begin(group, Overdue(1));
    EXPECT_TRUE(written.WaitForNotificationWithTimeout(kLong));
    recorder.End(stuck, absl::StatusCode::kOk);
    SetLogSink(nullptr);
    EXPECT_FALSE(watch.has_value());
    watch.reset();
  }
  EXPECT_FALSE(was_aborted);
}

TEST(WatchdogTest, TheThreadLivesAsLongAsAGroupIsWatched) {
  FlightRecorder recorder(16);
  Watchdog watchdog(recorder, Quick(Ignore));
  const int before = NumThreads();
  for (int i = 0; i < 200; ++i) {
    const GroupTag first(recorder, {.name = "first"});
    const GroupTag second(recorder, {.name = "second"});
    Watchdog::Watch watch_first = watchdog.Add(first, [](absl::Status) {});
    const Watchdog::Watch watch_second =
        watchdog.Add(second, [](absl::Status) {});
    watch_first.Stop();
    EXPECT_GT(NumThreads(), before);
  }
  EXPECT_TRUE(ComesDownTo(before));
}

TEST(WatchdogTest, GroupsMayComeAndGoOnManyThreads) {
  FlightRecorder recorder(64);
  Watchdog watchdog(recorder, Quick(Ignore));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        const GroupTag group(recorder, {.name = "g", .rank = t, .size = 4});
        Watchdog::Watch watch = watchdog.Add(group, [](absl::Status) {});
        const FlightTicket ticket = recorder.Begin(group, Overdue(1));
        recorder.End(ticket, absl::StatusCode::kOk);
        watch.Stop();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(WatchdogTest, AForkedChildIsNotHeldUp) {
  FlightRecorder recorder(16);
  Watchdog watchdog(recorder, Quick(Ignore));
  const GroupTag group(recorder, {.name = "g"});
  std::optional<Watchdog::Watch> watch =
      watchdog.Add(group, [](absl::Status) {});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // As the destructor of a group does that the child has a copy of; there is
    // no thread to join.
    alarm(30);
    watch.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// The handler is the process's: each of these runs in a process of its own.
class WatchdogSignalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
    folder_ = absl::StrCat(
        ::testing::TempDir(), "/watchdog-",
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    setenv("SHERD_FLIGHT_DIR", folder_.c_str(), 1);
  }

  static void WaitFor(const std::string& path) {
    const Deadline deadline = Deadline::After(kLong);
    while (!FileSystem::Posix().Exists(path).value_or(false) &&
           !deadline.HasPassed()) {
      std::this_thread::yield();
    }
  }

  std::string Dump(int rank) const {
    return absl::StrCat(folder_, "/flight.rank-", rank, ".json");
  }

  std::string folder_;
};

volatile sig_atomic_t calls_of_own_handler = 0;
void OwnHandler(int) { calls_of_own_handler = calls_of_own_handler + 1; }

TEST_F(WatchdogSignalTest, DumpsEveryRankAndCallsTheFormerHandler) {
  ASSERT_TRUE(FileSystem::Posix().RemoveAll(folder_).ok());
  EXPECT_EXIT(
      {
        signal(SIGUSR1, OwnHandler);
        const GroupTag two(
            {.name = "g", .rank = 0, .size = 2, .world_ranks = {2, 3}});
        const GroupTag three(
            {.name = "g", .rank = 1, .size = 2, .world_ranks = {2, 3}});
        const Watchdog::Watch watch =
            Watchdog::Global().Add(two, [](absl::Status) {});
        const FlightTicket ticket = FlightRecorder::Global().Begin(
            two, {.op = CollectiveOp::kScatter, .sequence = 9});
        raise(SIGUSR1);
        WaitFor(Dump(3));
        FlightRecorder::Global().End(ticket, absl::StatusCode::kOk);
        _exit(calls_of_own_handler);
      },
      ::testing::ExitedWithCode(1), "scatter #9");
  const std::string text =
      ReadFile(FileSystem::Posix(), Dump(2), 1 << 20).value();
  EXPECT_THAT(text, AllOf(HasSubstr("\"reason\": \"signal\""),
                          HasSubstr("\"op\":\"scatter\"")));
}

TEST_F(WatchdogSignalTest, TheSignalIsHarmlessWithoutAGroup) {
  EXPECT_EXIT(
      {
        {
          const GroupTag group({.name = "g"});
          const Watchdog::Watch watch =
              Watchdog::Global().Add(group, [](absl::Status) {});
        }
        raise(SIGUSR1);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(WatchdogSignalTest, AnIgnoredSignalStaysIgnored) {
  EXPECT_EXIT(
      {
        signal(SIGUSR1, SIG_IGN);
        const GroupTag group({.name = "g"});
        const Watchdog::Watch watch =
            Watchdog::Global().Add(group, [](absl::Status) {});
        struct sigaction action;
        sigaction(SIGUSR1, nullptr, &action);
        _exit(action.sa_handler == SIG_IGN ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sherd::internal
