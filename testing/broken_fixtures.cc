// Tests of fixtures that are broken on purpose, for fixtures_harness_test, and
// tests beside them that must not be disturbed.

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/knobs.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/persistent_test.h"

namespace sherd::testing {
namespace {

__attribute__((noinline)) void WaitForever() {
  for (;;) pause();
}

volatile int* NullPointer() {
  static volatile int* pointer = nullptr;
  return pointer;
}

// Forks in a body, by both kinds of processes.

template <typename Base>
class ForkTest : public Base {
 protected:
  int world_size() const override { return 2; }

  // Adds a line to the file that counts what runs. Whoever runs the body or
  // anything behind it once too often is seen.
  void Count(const char* what) {
    const int fd =
        open(absl::StrCat(this->temp_dir(), "/../../counted").c_str(),
             O_WRONLY | O_CREAT | O_APPEND, 0600);
    ASSERT_GE(fd, 0);
    const std::string line = absl::StrCat(what, "\n");
    EXPECT_EQ(write(fd, line.data(), line.size()),
              static_cast<ssize_t>(line.size()));
    close(fd);
  }
  void TearDown() override { Count("TearDown"); }

  // True in the process that is forked; the other one waits for it to end.
  bool Fork() {
    const pid_t pid = fork();
    EXPECT_GE(pid, 0);
    if (pid == 0) return true;
    EXPECT_EQ(waitpid(pid, &status_, 0), pid);
    EXPECT_TRUE(WIFEXITED(status_));
    return false;
  }
  int exit_code() const { return WEXITSTATUS(status_); }

  int status_ = -1;
};

class FreshForkTest : public ForkTest<DistributedTest> {};
class PersistentForkTest : public ForkTest<PersistentDistributedTest> {};

// By a forked process, which expects something in vain and returns.
#define SHERD_FORK_TESTS(Fixture)                                     \
  SHERD_DIST_TEST_F(Fixture, AForkedProcessReturns, WithoutComms{}) { \
    if (Fork()) {                                                     \
      EXPECT_EQ(1, 2) << "in vain";                                   \
      return;                                                         \
    }                                                                 \
    EXPECT_EQ(exit_code(), 10);                                       \
    Count("body");                                                    \
  }                                                                   \
  SHERD_DIST_TEST_F(Fixture, AForkedProcessExits) {                   \
    if (Fork()) _exit(3);                                             \
    EXPECT_EQ(exit_code(), 3);                                        \
    Count("body");                                                    \
  }                                                                   \
  SHERD_DIST_TEST_F(Fixture, AForkedProcessThrows, WithoutComms{}) {  \
    if (Fork()) throw 1;                                              \
    EXPECT_EQ(exit_code(), 10);                                       \
    Count("body");                                                    \
  }                                                                   \
  SHERD_DIST_TEST_F(Fixture, AForkedProcessExitsInOrder) {            \
    if (Fork()) exit(0);                                              \
    EXPECT_EQ(exit_code(), 0);                                        \
    Count("body");                                                    \
  }                                                                   \
  SHERD_DIST_TEST_F(Fixture, ADeathTestOfStyleFast, WithoutComms{}) { \
    GTEST_FLAG_SET(death_test_style, "fast");                         \
    EXPECT_DEATH(*NullPointer() = 1, "");                             \
    Count("body");                                                    \
  }                                                                   \
  SHERD_DIST_TEST_F(Fixture, ThreadsafeDeathTest, WithoutComms{}) {   \
    GTEST_FLAG_SET(death_test_style, "threadsafe");                   \
    EXPECT_DEATH(*NullPointer() = 1, "signal 11");                    \
  }

SHERD_FORK_TESTS(FreshForkTest)
SHERD_FORK_TESTS(PersistentForkTest)

class WorldTest : public DistributedTest {};
SHERD_DIST_TEST_F(WorldTest, HasTheSizeOfTheTarget, WithoutComms{}) {}
class PersistentWorldTest : public PersistentDistributedTest {};
SHERD_DIST_TEST_F(PersistentWorldTest, HasTheSizeOfTheTarget, WithoutComms{}) {}

// Persistent ranks: each broken test has one before and one behind it.

class BrokenPersistentTest : public PersistentDistributedTest {
 protected:
  int world_size() const override { return 3; }
  absl::Duration grace() const override { return absl::Seconds(1); }
};

class PersistentFailure : public BrokenPersistentTest {};
SHERD_DIST_TEST_F(PersistentFailure, Before) {
  std::printf("output of the test before\n");
  std::cout << "more of it";
}
SHERD_DIST_TEST_F(PersistentFailure, IsBroken) {
  std::printf("output of the broken test\n");
  ASSERT_NE(rank(), 1) << "on purpose";
}
SHERD_DIST_TEST_F(PersistentFailure, Behind) {
  EXPECT_TRUE(group().Barrier().ok());
}

class PersistentCrash : public BrokenPersistentTest {};
SHERD_DIST_TEST_F(PersistentCrash, Before) {}
SHERD_DIST_TEST_F(PersistentCrash, IsBroken, WithoutComms{}) {
  if (rank() == 1) *NullPointer() = 1;
  WaitForever();
}
SHERD_DIST_TEST_F(PersistentCrash, Behind) {}

class PersistentExit : public BrokenPersistentTest {};
SHERD_DIST_TEST_F(PersistentExit, Before) {}
SHERD_DIST_TEST_F(PersistentExit, IsBroken, WithoutComms{}) {
  if (rank() == 2) _exit(0);
}
SHERD_DIST_TEST_F(PersistentExit, Behind) {}

class PersistentHang : public BrokenPersistentTest {
 protected:
  absl::Duration timeout() const override { return absl::Seconds(4); }
};
SHERD_DIST_TEST_F(PersistentHang, Before) {}
SHERD_DIST_TEST_F(PersistentHang, IsBroken, WithoutComms{}) {
  if (rank() == 0) WaitForever();
}
SHERD_DIST_TEST_F(PersistentHang, Behind) {}

class PersistentSkip : public BrokenPersistentTest {};
SHERD_DIST_TEST_F(PersistentSkip, Before) {}
SHERD_DIST_TEST_F(PersistentSkip, IsBroken) {
  if (rank() == 1) GTEST_SKIP() << "no room";
}
SHERD_DIST_TEST_F(PersistentSkip, Behind) {}

class PersistentSetUpSuite : public BrokenPersistentTest {
 protected:
  static void SetUpTestSuite() {
    EXPECT_NE(GetKnobOr(Knob::kRank, ""), "1") << "on purpose";
  }
};
SHERD_DIST_TEST_F(PersistentSetUpSuite, IsBroken, WithoutComms{}) {}

class PersistentTearDownSuite : public BrokenPersistentTest {
 protected:
  static void TearDownTestSuite() {
    EXPECT_NE(GetKnobOr(Knob::kRank, ""), "1") << "on purpose";
  }
};
SHERD_DIST_TEST_F(PersistentTearDownSuite, Passes) {}

class PersistentEndCrash : public BrokenPersistentTest {};
SHERD_DIST_TEST_F(PersistentEndCrash, Passes) {
  if (rank() == 2) atexit([] { *NullPointer() = 1; });
}

class PersistentEndHang : public BrokenPersistentTest {};
SHERD_DIST_TEST_F(PersistentEndHang, Passes) {
  if (rank() == 0) atexit(WaitForever);
}

class PersistentSetUp : public BrokenPersistentTest {
 protected:
  void SetUp() override {
    const std::string name =
        ::testing::UnitTest::GetInstance()->current_test_info()->name();
    ASSERT_TRUE(name != "IsBroken" || rank() != 1) << "on purpose";
  }
};
SHERD_DIST_TEST_F(PersistentSetUp, Before) {}
SHERD_DIST_TEST_F(PersistentSetUp, IsBroken) {
  const absl::Status status = group().Barrier();
  EXPECT_TRUE(status.ok()) << status;
}
SHERD_DIST_TEST_F(PersistentSetUp, Behind) {}

// Ranks that die behind their part of a test.

class DeathTest : public BrokenPersistentTest {
 protected:
  static std::string Place(absl::string_view name) {
    return absl::StrCat(GetKnobOr(Knob::kTestTmpDir, "/tmp"), "/", name);
  }
  // The same place, from a rank.
  std::string PlaceOfRank(absl::string_view name) const {
    return absl::StrCat(temp_dir(), "/../../", name);
  }
  static void AwaitDeath(int process) {
    const Deadline deadline = Deadline::After(absl::Seconds(60));
    while (!HasEnded(process)) {
      ASSERT_FALSE(deadline.HasPassed());
      usleep(1000);
    }
  }

 private:
  // So that its parent sees it too: the first thread of a process can be a
  // zombie before the others have ended.
  static bool HasEnded(int process) {
    const std::string place = absl::StrCat("/proc/", process);
    std::error_code error;
    const std::filesystem::directory_iterator threads(place + "/task", error);
    const auto others = std::distance(begin(threads), end(threads)) - 1;
    std::ifstream file(place + "/stat");
    std::string name, state = "X";
    // "17 (rank 1) S …"
    std::getline(file, name, ')');
    file >> state;
    return (state == "Z" || state == "X") && others <= 0;
  }
};

// The ordinary test between the two lets the rank die, and waits for it.
class PersistentDeath : public DeathTest {};
SHERD_DIST_TEST_F(PersistentDeath, Before, WithoutComms{}) {
  if (rank() != 1) return;
  std::ofstream(PlaceOfRank("victim")) << getpid();
  std::thread([go = PlaceOfRank("die")] {
    while (access(go.c_str(), F_OK) != 0) usleep(1000);
    raise(SIGKILL);
  }).detach();
}
TEST_F(PersistentDeath, Between) {
  int victim = 0;
  std::ifstream(Place("victim")) >> victim;
  ASSERT_GT(victim, 0);
  std::ofstream(Place("die")) << 1;
  AwaitDeath(victim);
}
SHERD_DIST_TEST_F(PersistentDeath, Behind) {
  std::ofstream(PlaceOfRank(absl::StrCat("behind_", rank()))) << 1;
  EXPECT_TRUE(group().Barrier().ok());
}

// The rank dies when it waits for its next test, while another one still runs
// this one.
class PersistentLateDeath : public DeathTest {};
SHERD_DIST_TEST_F(PersistentLateDeath, Passes, WithoutComms{}) {
  const std::string victim = PlaceOfRank("victim");
  if (rank() == 0) {
    std::thread([main_thread = getpid()] {
      const std::string reads = absl::StrCat(SYS_read, " ");
      for (std::string call; call.rfind(reads, 0) != 0; usleep(1000)) {
        std::ifstream file(
            absl::StrCat("/proc/self/task/", main_thread, "/syscall"));
        std::getline(file, call);
      }
      *NullPointer() = 1;
    }).detach();
    std::ofstream(victim + ".new") << getpid();
    ASSERT_EQ(std::rename((victim + ".new").c_str(), victim.c_str()), 0);
  } else if (rank() == 1) {
    while (access(victim.c_str(), F_OK) != 0) usleep(1000);
    int process = 0;
    std::ifstream(victim) >> process;
    AwaitDeath(process);
  }
}

// For GoogleTest's own options.
class OptionsTest : public PersistentDistributedTest,
                    public ::testing::WithParamInterface<int> {
 protected:
  int world_size() const override { return GetParam(); }
};
SHERD_DIST_TEST_P(OptionsTest, Passes) {
  EXPECT_EQ(group().size(), GetParam());
}
SHERD_DIST_TEST_P(OptionsTest, FailsOnThree) { EXPECT_NE(GetParam(), 3); }
SHERD_DIST_TEST_P(OptionsTest, DISABLED_IsDisabled) {
  EXPECT_EQ(group().size(), GetParam());
}
SHERD_DIST_TEST_P(OptionsTest, PassesToo, WithoutComms{}) {}
INSTANTIATE_TEST_SUITE_P(All, OptionsTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace sherd::testing
