#include "sherd/core/base/waiting_deleter.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/named_thread.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;

// Beyond which a test has failed; nothing waits for it otherwise.
constexpr absl::Duration kLong = absl::Seconds(60);

// Calls `destroy` when it is destroyed.
struct Object {
  explicit Object(std::function<void()> function)
      : destroy(std::move(function)) {}
  ~Object() { destroy(); }

  const std::function<void()> destroy;
};

std::shared_ptr<Object> MakeObject(std::function<void()> destroy) {
  return {new Object(std::move(destroy)), WaitingDeleter()};
}

TEST(WaitingDeleterTest, AThreadOfTheProgramDestroysInPlace) {
  std::thread::id thread;
  MakeObject([&] { thread = std::this_thread::get_id(); }).reset();
  EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST(WaitingDeleterTest, AThreadOfTheLibraryDoesNotWaitForADestructor) {
  absl::Notification returned;
  absl::Notification destroyed;
  std::atomic<bool> in_time = false;
  auto handle = MakeObject([&] {
    in_time = returned.WaitForNotificationWithTimeout(kLong);
    destroyed.Notify();
  });
  auto thread = StartNamedThread("test", [&] {
    handle.reset();
    returned.Notify();
  });
  ASSERT_THAT(thread, IsOk());
  EXPECT_TRUE(destroyed.WaitForNotificationWithTimeout(2 * kLong));
  EXPECT_TRUE(in_time);
  thread->join();
}

TEST(WaitingDeleterTest, ADestructorMayLogWhileTheSinkThatDroppedItRuns) {
  absl::Notification destroyed;
  auto handle = MakeObject([&] {
    // In the sink, which one thread at a time calls.
    SHERD_LOG(kError) << "from the destructor";
    destroyed.Notify();
  });
  std::atomic<int> lines = 0;
  SetLogSink([&](const LogEntry&) {
    ++lines;
    handle.reset();
  });
  SHERD_LOG(kError) << "from the test";
  EXPECT_TRUE(destroyed.WaitForNotificationWithTimeout(kLong));
  SetLogSink(nullptr);
  EXPECT_EQ(lines, 2);
}

TEST(WaitingDeleterTest, AScopeMakesAThreadOneOfTheLibrary) {
  EXPECT_FALSE(IsLibraryThread());
  {
    const ScopedLibraryThread outer;
    { const ScopedLibraryThread inner; }
    EXPECT_TRUE(IsLibraryThread());
  }
  EXPECT_FALSE(IsLibraryThread());
}

// Of the process that exits.
absl::Notification exits;
std::atomic<bool> destroyed_at_exit{false};

void DropOnThreadOfTheLibrary(std::shared_ptr<Object> handle) {
  const ScopedLibraryThread scope;
  handle.reset();
}

TEST(WaitingDeleterTest, ExitWaitsForDestructors) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        // Functions are called in the reverse order.
        std::atexit([] { _exit(destroyed_at_exit ? 7 : 8); });
        DropOnThreadOfTheLibrary(MakeObject([] {
          exits.WaitForNotification();
          destroyed_at_exit = true;
        }));
        std::atexit([] { exits.Notify(); });
        std::exit(0);
      },
      ::testing::ExitedWithCode(7), "");
}

TEST(WaitingDeleterTest, ExitOnAThreadThatADestructorNeedsDoesNotWaitForIt) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        DropOnThreadOfTheLibrary(
            MakeObject([] { exits.WaitForNotification(); }));
        const ScopedLibraryThread scope;
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace sherd::internal
