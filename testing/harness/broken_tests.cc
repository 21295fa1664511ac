// Tests that end in each manner in which a test should not. harness_test runs
// them one by one and checks the harness's reports.

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/init.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/kits/hang_seconds.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"

namespace sherd::testing {
namespace {

class BrokenTest : public DistributedTest {
 protected:
  int world_size() const override { return 3; }
  absl::Duration grace() const override { return absl::Seconds(1); }
};

// Ends soon.
class ShortTest : public BrokenTest {
 protected:
  absl::Duration timeout() const override {
    return absl::Seconds(kHangSeconds);
  }
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

struct CrashesInItsDestructor {
  ~CrashesInItsDestructor() { *NullPointer() = 1; }
};

SHERD_DIST_TEST_F(BrokenTest, CrashesInAStaticDestructor, WithoutComms{}) {
  if (rank() == 1) {
    [[maybe_unused]] static const CrashesInItsDestructor object;
  }
}

__attribute__((noinline)) int Recurse(int depth) {
  volatile char space[4096];
  space[0] = 1;
  if (depth == 0) return space[0];
  return Recurse(depth + space[0]) + space[0];
}

SHERD_DIST_TEST_F(BrokenTest, OverflowsItsStack, WithoutComms{}) {
  if (rank() == 1) {
    EXPECT_EQ(Recurse(1), 0);
  }
}

SHERD_DIST_TEST_F(BrokenTest, Terminates, WithoutComms{}) {
  if (rank() == 2) std::terminate();
}

SHERD_DIST_TEST_F(BrokenTest, ThrowsInAThread, WithoutComms{}) {
  if (rank() != 2) return;
  std::thread([] { throw std::runtime_error("thrown in a thread"); }).join();
}

SHERD_DIST_TEST_F(BrokenTest, ExitsInTheBody, WithoutComms{}) {
  if (rank() == 1) exit(0);
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

// 100 MB.
SHERD_DIST_TEST_F(BrokenTest, FloodsItsOutput, WithoutComms{}) {
  if (rank() == 1) {
    const std::string line(1023, 'x');
    for (int i = 0; i < 100 * 1000; ++i)
      std::printf("%d %s\n", i, line.c_str());
  }
  std::printf("last line\n");
  EXPECT_NE(rank(), 1) << "so that the output is shown";
}

// No rank is ended because others have failed.
class PatientTest : public BrokenTest {
 protected:
  absl::Duration grace() const override { return timeout(); }
};

SHERD_DIST_TEST_F(PatientTest, FloodsTheResultPipe, WithoutComms{}) {
  ADD_FAILURE() << "long " << std::string(1 << 20, 'y');
  const int failures = rank() == 2 ? 100 * 1000 : 1000;
  for (int i = 0; i < failures; ++i) ADD_FAILURE() << "number " << i;
}

// Bytes that are not text, in every text that a rank can report.
SHERD_DIST_TEST_F(BrokenTest, PrintsBytesThatAreNotText, WithoutComms{}) {
  const std::string noise =
      std::string("\0\1\xff\xc3(\x1b[31m]]>\xed\xa0\x80", 16);
  std::fwrite(noise.data(), 1, noise.size(), stdout);
  ADD_FAILURE() << noise << "red\x1b[0m";
}

SHERD_DIST_TEST_F(BrokenTest, WritesLinesFromManyThreads, WithoutComms{}) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      std::FILE* const stream = i % 2 == 0 ? stdout : stderr;
      const std::string text(100, static_cast<char>('a' + i));
      for (int n = 0; n < 500; ++n) {
        std::fprintf(stream, "<%s>\n", text.c_str());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ADD_FAILURE();
}

SHERD_DIST_TEST_F(BrokenTest, CrashesWithOutput, WithoutComms{}) {
  if (rank() != 1) return;
  std::printf("printed before the crash\n");
  *NullPointer() = 1;
}

class SetUpHangTest : public ShortTest {
 protected:
  void SetUp() override {
    if (rank() == 1) WaitForever();
  }
};

SHERD_DIST_TEST_F(SetUpHangTest, HangsInSetUp, WithoutComms{}) {}

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

struct HangsInItsDestructor {
  ~HangsInItsDestructor() { WaitForever(); }
};

SHERD_DIST_TEST_F(ShortTest, HangsInAStaticDestructor, WithoutComms{}) {
  if (rank() == 2) {
    [[maybe_unused]] static const HangsInItsDestructor object;
  }
}

// Rank 1 does not call the third barrier.
SHERD_DIST_TEST_F(ShortTest, OneRankStaysAwayFromABarrier) {
  EXPECT_THAT(group().Barrier(), IsOk());
  if (rank() == 1) WaitForever();
  EXPECT_THAT(group().Barrier(), IsOk());
}

SHERD_DIST_TEST_F(ShortTest, IsStopped, WithoutComms{}) {
  if (rank() == 2) raise(SIGSTOP);
}

SHERD_DIST_TEST_F(BrokenTest, FailsInAThread, WithoutComms{}) {
  std::thread([this] { EXPECT_NE(rank(), 2) << "in a thread"; }).join();
}

struct AwaitsItsThread {
  ~AwaitsItsThread() {
    test_is_over.Notify();
    has_failed.WaitForNotification();
  }
  absl::Notification test_is_over;
  absl::Notification has_failed;
};

SHERD_DIST_TEST_F(BrokenTest, FailsInAThreadAfterTheTest, WithoutComms{}) {
  if (rank() != 1) return;
  static AwaitsItsThread object;
  std::thread([] {
    object.test_is_over.WaitForNotification();
    ADD_FAILURE() << "after the test";
    object.has_failed.Notify();
  }).detach();
}

SHERD_DIST_TEST_F(BrokenTest, ThrowsANumber, WithoutComms{}) {
  if (rank() == 1) throw 7;
}

SHERD_DIST_TEST_F(BrokenTest, Throws) {
  if (rank() == 1) throw std::runtime_error("thrown on purpose");
  EXPECT_THAT(group().Barrier(), IsOk());
}

struct AbortsInItsDestructor {
  // Its name is in the report.
  __attribute__((noinline)) ~AbortsInItsDestructor() { abort(); }
};

SHERD_DIST_TEST_F(BrokenTest, AbortsInADestructor, WithoutComms{}) {
  if (rank() == 0) AbortsInItsDestructor();
}

SHERD_DIST_TEST_F(BrokenTest, AbortsInAStaticDestructor, WithoutComms{}) {
  if (rank() == 0) {
    [[maybe_unused]] static const AbortsInItsDestructor object;
  }
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

SHERD_DIST_TEST_F(BrokenTest, ClosesAllItsFiles, WithoutComms{}) {
  if (rank() == 2) {
    closefrom(0);
    WaitForever();
  }
}

SHERD_DIST_TEST_F(BrokenTest, ClosesItsOutput, WithoutComms{}) {
  close(STDOUT_FILENO);
  close(STDERR_FILENO);
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

// Writes the number of a process for harness_test, in one step.
void WritePid(const std::string& path, pid_t pid) {
  const std::string unfinished = path + ".new";
  std::FILE* file = std::fopen(unfinished.c_str(), "w");
  ASSERT_NE(file, nullptr);
  std::fprintf(file, "%d", pid);
  std::fclose(file);
  ASSERT_EQ(std::rename(unfinished.c_str(), path.c_str()), 0);
}

class ProcessTest : public BrokenTest {
 protected:
  std::string FileFor(const std::string& what) const {
    return absl::StrCat(temp_dir(), "/../../", what, "_", rank());
  }

  // A child that waits forever.
  void StartChild(const std::string& what, bool in_session_of_its_own,
                  bool floods = false) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      if (in_session_of_its_own) setsid();
      const std::string noise(4096, 'x');
      while (floods) {
        if (write(STDOUT_FILENO, noise.data(), noise.size()) < 0) break;
      }
      WaitForever();
    }
    WritePid(FileFor(what), pid);
  }
};

SHERD_DIST_TEST_F(ProcessTest, LeavesAProcessBehind, WithoutComms{}) {
  StartChild("left", /*in_session_of_its_own=*/false);
}

// The daemon keeps the test's output and its result pipe open.
SHERD_DIST_TEST_F(ProcessTest, LeavesADaemonBehind, WithoutComms{}) {
  StartChild("left", /*in_session_of_its_own=*/true);
}

SHERD_DIST_TEST_F(ProcessTest, LeavesAFloodBehind, WithoutComms{}) {
  StartChild("left", /*in_session_of_its_own=*/true, /*floods=*/true);
}

SHERD_DIST_TEST_F(ProcessTest, WaitsForever, WithoutComms{}) {
  StartChild("child", /*in_session_of_its_own=*/false);
  StartChild("daemon", /*in_session_of_its_own=*/true);
  WritePid(FileFor("rank"), getpid());
  WaitForever();
}

// In whose parent process the second or third rank cannot be given its pipes.
class FewFilesTest : public BrokenTest {
 protected:
  static void SetUpTestSuite() {
    const int next = dup(STDERR_FILENO);
    close(next);
    rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = static_cast<rlim_t>(next) + 9;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
};

SHERD_DIST_TEST_F(FewFilesTest, HasTooFewFiles, WithoutComms{}) {}

// In whose parent process fork() fails as it does at the limit of processes,
// from which root is exempt.
class FewProcessesTest : public BrokenTest {
 protected:
  static void SetUpTestSuite() {
    const sock_filter refused = BPF_STMT(
        BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (EAGAIN & SECCOMP_RET_DATA));
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
        refused,
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        refused,
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
    ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
  }
};

SHERD_DIST_TEST_F(FewProcessesTest, HasTooFewProcesses, WithoutComms{}) {}

// Ranks that go on from test to test, some of which break them.
class BrokenSuiteTest : public PersistentDistributedTest {
 protected:
  int world_size() const override { return 3; }
  absl::Duration grace() const override { return absl::Seconds(1); }
  absl::Duration timeout() const override {
    const std::string test =
        ::testing::UnitTest::GetInstance()->current_test_info()->name();
    return test == "Hangs" ? absl::Seconds(kHangSeconds)
                           : PersistentDistributedTest::timeout();
  }
};

SHERD_DIST_TEST_F(BrokenSuiteTest, IsFine) {}
SHERD_DIST_TEST_F(BrokenSuiteTest, Crashes) {
  if (rank() == 1) *NullPointer() = 1;
  WaitForever();
}
SHERD_DIST_TEST_F(BrokenSuiteTest, PassesAfterACrash) {
  EXPECT_THAT(group().Barrier(), IsOk());
}
SHERD_DIST_TEST_F(BrokenSuiteTest, Hangs) {
  if (rank() == 2) WaitForever();
}
SHERD_DIST_TEST_F(BrokenSuiteTest, PassesAfterAHang) {
  EXPECT_THAT(group().Barrier(), IsOk());
}
SHERD_DIST_TEST_F(BrokenSuiteTest, AllSkip) {
  SHERD_SKIP(SkipReason::kRocm) << "on purpose";
}
SHERD_DIST_TEST_F(BrokenSuiteTest, OneSkips) {
  if (rank() == 1) GTEST_SKIP() << "no room";
}
SHERD_DIST_TEST_F(BrokenSuiteTest, PassesAfterASkip) {
  EXPECT_THAT(group().Barrier(), IsOk());
}
SHERD_DIST_TEST_F(BrokenSuiteTest, Fails) {
  ASSERT_NE(rank(), 1) << "the root cause";
  EXPECT_THAT(group().Barrier(), IsOk());
}
SHERD_DIST_TEST_F(BrokenSuiteTest, PassesAfterAFailure) {
  EXPECT_THAT(group().Barrier(), IsOk());
}
SHERD_DIST_TEST_F(BrokenSuiteTest, Exits) {
  if (rank() == 0) exit(0);
}
SHERD_DIST_TEST_F(BrokenSuiteTest, PassesAfterAnExit) {
  EXPECT_THAT(group().Barrier(), IsOk());
}

bool IsRankTwo() { return GetKnobOr(Knob::kRank, "") == "2"; }

template <void (*kEnd)()>
class SuiteEndTest : public PersistentDistributedTest {
 protected:
  int world_size() const override { return 3; }
  static void TearDownTestSuite() {
    if (IsRankTwo()) kEnd();
  }
};

void Fail() { ADD_FAILURE() << "at the end of the suite"; }
void Crash() { *NullPointer() = 1; }
using FailingSuiteEndTest = SuiteEndTest<Fail>;
using CrashingSuiteEndTest = SuiteEndTest<Crash>;

SHERD_DIST_TEST_F(FailingSuiteEndTest, IsFine) {}
SHERD_DIST_TEST_F(FailingSuiteEndTest, IsFineToo) {}
SHERD_DIST_TEST_F(CrashingSuiteEndTest, IsFine) {}

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
