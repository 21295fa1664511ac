// Tests that end in every way a test should not. harness_test runs them one by
// one and looks at what the harness makes of them.

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/init.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

class BrokenTest : public DistributedTest {
 protected:
  int world_size() const override { return 3; }
  absl::Duration grace() const override { return absl::Seconds(1); }
};

// Ends after two seconds.
class ShortTest : public BrokenTest {
 protected:
  absl::Duration timeout() const override { return absl::Seconds(2); }
};

__attribute__((noinline)) void WaitForever() {
  for (;;) pause();
}

volatile int* NullPointer() {
  static volatile int* pointer = nullptr;
  return pointer;
}

SHERD_DIST_TEST_F(BrokenTest, Passes, WithoutComms{}) {}

class SetUpCrashTest : public BrokenTest {
 protected:
  void SetUp() override {
    if (rank() == 1) *NullPointer() = 1;
    WaitForever();
  }
};

SHERD_DIST_TEST_F(SetUpCrashTest, CrashesBeforeTheBody, WithoutComms{}) {}

SHERD_DIST_TEST_F(BrokenTest, CrashesInTheBody, WithoutComms{}) {
  if (rank() == 1) *NullPointer() = 1;
  WaitForever();
}

SHERD_DIST_TEST_F(BrokenTest, CrashesAfterTheTest, WithoutComms{}) {
  if (rank() == 2) atexit([] { *NullPointer() = 1; });
}

SHERD_DIST_TEST_F(BrokenTest, ExitsBeforeTheEnd, WithoutComms{}) {
  if (rank() == 2) _exit(0);
}

SHERD_DIST_TEST_F(BrokenTest, ExitsWithTheCodeOfASkip, WithoutComms{}) {
  _exit(81);
}

SHERD_DIST_TEST_F(BrokenTest, OneRankSkips, WithoutComms{}) {
  if (rank() == 1) GTEST_SKIP() << "no room";
  WaitForever();
}

SHERD_DIST_TEST_F(BrokenTest, RanksSkipForDifferentReasons, WithoutComms{}) {
  SHERD_SKIP(rank() == 1 ? SkipReason::kNoCuda : SkipReason::kRocm);
}

SHERD_DIST_TEST_F(BrokenTest, AllRanksSkip) {
  SHERD_SKIP(SkipReason::kSmallWorldSize) << "on purpose";
}

SHERD_DIST_TEST_F(BrokenTest, AsksForRpc, (WithComms{.init_rpc = true})) {}

SHERD_DIST_TEST_F(BrokenTest, AsksForAnUnknownBackend,
                  (WithComms{.backend = "nosuch"})) {}

SHERD_DIST_TEST_F(BrokenTest, IgnoresSigterm, WithoutComms{}) {
  if (rank() == 0) {
    signal(SIGTERM, SIG_IGN);
    WaitForever();
  }
  FAIL() << "so that rank 0 is stopped";
}

SHERD_DIST_TEST_F(BrokenTest, FloodsItsOutput, WithoutComms{}) {
  const std::string line(1023, 'x');
  for (int i = 0; i < 2048; ++i) std::printf("%d %s\n", i, line.c_str());
  std::printf("last line\n");
  EXPECT_NE(rank(), 1) << "so that the output is shown";
}

SHERD_DIST_TEST_F(BrokenTest, FloodsTheResultPipe, WithoutComms{}) {
  ADD_FAILURE() << "long " << std::string(1 << 20, 'y');
  for (int i = 0; i < 5000; ++i) ADD_FAILURE() << "number " << i;
}

SHERD_DIST_TEST_F(ShortTest, HangsInTheBody, WithoutComms{}) {
  std::thread other(WaitForever);
  other.join();
}

class TearDownHangTest : public ShortTest {
 protected:
  void TearDown() override {
    if (rank() == 1) WaitForever();
  }
};

SHERD_DIST_TEST_F(TearDownHangTest, HangsInTearDown, WithoutComms{}) {}

SHERD_DIST_TEST_F(ShortTest, HangsAtExit, WithoutComms{}) {
  if (rank() == 0) atexit(WaitForever);
}

SHERD_DIST_TEST_F(ShortTest, IsStopped, WithoutComms{}) {
  if (rank() == 2) raise(SIGSTOP);
}

SHERD_DIST_TEST_F(BrokenTest, FailsInAThread, WithoutComms{}) {
  std::thread([this] { EXPECT_NE(rank(), 2) << "in a thread"; }).join();
}

SHERD_DIST_TEST_F(BrokenTest, Throws) {
  if (rank() == 1) throw std::runtime_error("thrown on purpose");
  EXPECT_THAT(group().Barrier(), IsOk());
}

struct AbortsInItsDestructor {
  ~AbortsInItsDestructor() { abort(); }
};

SHERD_DIST_TEST_F(BrokenTest, AbortsInADestructor, WithoutComms{}) {
  if (rank() == 0) AbortsInItsDestructor();
}

SHERD_DIST_TEST_F(BrokenTest, OneRankFailsWhileTheOthersWait) {
  ASSERT_NE(rank(), 1) << "the root cause";
  EXPECT_THAT(group().Barrier(), IsOk());
}

SHERD_DIST_TEST_F(BrokenTest, OneRankIsKilledWhileTheOthersWait) {
  if (rank() == 1) raise(SIGKILL);
  EXPECT_THAT(group().Barrier(), IsOk());
}

SHERD_DIST_TEST_F(BrokenTest, OneRankFails) { EXPECT_NE(rank(), 1); }

SHERD_DIST_TEST_F(BrokenTest, AllRanksFailAlike) { EXPECT_EQ(1, 2); }

SHERD_DIST_TEST_F(BrokenTest, ClosesItsResultPipe, WithoutComms{}) {
  if (rank() == 0) {
    closefrom(3);
    WaitForever();
  }
}

SHERD_DIST_TEST_F(BrokenTest, WritesGarbageToItsResultPipe, WithoutComms{}) {
  for (int fd = 3; fd < 64; ++fd) {
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISFIFO(info.st_mode)) continue;
    ASSERT_EQ(write(fd, "garbage!", 8), 8);
  }
}

SHERD_DIST_TEST_F(BrokenTest, DoesNotDieAsAnnounced, WithoutComms{}) {
  ExpectRankDies(1, SIGKILL);
}

SHERD_DIST_TEST_F(BrokenTest, DiesOfAnotherSignal, WithoutComms{}) {
  ExpectRankDies(1, SIGKILL);
  if (rank() == 1) raise(SIGINT);
}

SHERD_DIST_TEST_F(BrokenTest, LeavesAProcessBehind, WithoutComms{}) {
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) WaitForever();
  const std::string path = absl::StrCat(temp_dir(), "/../../left_", rank());
  std::FILE* file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fprintf(file, "%d", pid);
  std::fclose(file);
}

SHERD_DIST_TEST_F(BrokenTest, WaitsForever, WithoutComms{}) {
  const std::string path = absl::StrCat(temp_dir(), "/../../rank_", rank());
  const std::string unfinished = path + ".new";
  std::FILE* file = std::fopen(unfinished.c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fprintf(file, "%d", getpid());
  std::fclose(file);
  ASSERT_EQ(std::rename(unfinished.c_str(), path.c_str()), 0);
  WaitForever();
}

template <int kSize>
class SizedTest : public DistributedTest {
 protected:
  int world_size() const override { return kSize; }
};
using NoRanksTest = SizedTest<0>;
using NegativeRanksTest = SizedTest<-3>;
using ThousandRanksTest = SizedTest<1000>;

SHERD_DIST_TEST_F(NoRanksTest, IsRefused) {}
SHERD_DIST_TEST_F(NegativeRanksTest, IsRefused) {}
SHERD_DIST_TEST_F(ThousandRanksTest, IsRefused) {}

}  // namespace
}  // namespace sherd::testing
