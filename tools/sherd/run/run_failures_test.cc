// The reports of sherd run on ranks that fail: which ranks are named, which
// continue, and which are restarted.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/flight/flight_files.h"
#include "sherd/testing/matchers.h"
#include "sherd/tools/sherd/shell.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSherd[] = "tools/sherd/sherd";
constexpr char kFailingRank[] = "tools/sherd/failing_rank";

struct Ended : ShellResult {
  std::string last_line() const {
    const std::vector<std::string> lines = absl::StrSplit(output, '\n');
    return lines.size() < 2 ? "" : lines[lines.size() - 2];
  }
};

// Each test has a TMPDIR of its own.
class RunFailuresTest : public ::testing::Test {
 protected:
  RunFailuresTest()
      : folder_(absl::StrCat(
            ::testing::TempDir(), "/",
            ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    EXPECT_THAT(FileSystem::Posix().RemoveAll(folder_), IsOk());
    EXPECT_THAT(FileSystem::Posix().CreateDirectories(folder_), IsOk());
    setenv("TMPDIR", folder_.c_str(), 1);
  }

  // The words are in single quotes.
  static Ended Run(const std::vector<std::string>& arguments) {
    std::string command = absl::StrCat(kSherd, " run");
    for (const std::string& argument : arguments) {
      absl::StrAppend(&command, " '", argument, "'");
    }
    return {Shell(command)};
  }

  std::vector<std::string> FlightDirectories() const {
    std::vector<std::string> found;
    const auto names = FileSystem::Posix().List(folder_);
    EXPECT_THAT(names, IsOk());
    for (const std::string& name : *names) {
      if (name.rfind("sherd-flight-", 0) == 0) found.push_back(name);
    }
    return found;
  }

  const std::string folder_;
};

struct Fault {
  std::string how;
  std::string timeout;
  int exit_code;
};

class NamedRankTest : public RunFailuresTest,
                      public ::testing::WithParamInterface<Fault> {};

TEST_P(NamedRankTest, IsTheOneThatTheOthersName) {
  const Ended run =
      Run({"-n", "4", kFailingRank, "2", GetParam().how, GetParam().timeout});
  EXPECT_EQ(run.exit_code, GetParam().exit_code) << run.output;
  EXPECT_THAT(run.last_line(),
              AllOf(HasSubstr("sherd run: rank 2 of 4 failed, as "),
                    HasSubstr("; inspect with: sherd flight " + folder_ +
                              "/sherd-flight-")))
      << run.output;
}

INSTANTIATE_TEST_SUITE_P(
    Faults, NamedRankTest,
    ::testing::Values(Fault{"kill", "20s", 137}, Fault{"stop", "2s", 1},
                      Fault{"call", "20s", 1}, Fault{"exit", "20s", 7}),
    [](const ::testing::TestParamInfo<Fault>& info) { return info.param.how; });

TEST_F(RunFailuresTest, TheLateRankLeavesADumpToo) {
  for (const char* how : {"stop", "spin"}) {
    const Ended run = Run({"-n", "3", "--grace=1", "--env",
                           absl::StrCat("SHERD_FLIGHT_DIR=", folder_, "/", how),
                           kFailingRank, "1", how, "1s"});
    EXPECT_EQ(run.exit_code, 1) << run.output;
    const auto files = ReadFlightDirectory(FileSystem::Posix(),
                                           absl::StrCat(folder_, "/", how));
    ASSERT_THAT(files, IsOk());
    EXPECT_EQ(files->files.size(), 3u) << run.output;
  }
}

TEST_F(RunFailuresTest, ATimeoutNamesTheRankThatWasWaitedFor) {
  const Ended run =
      Run({"-n", "2", "--timeout=8", kFailingRank, "1", "spin", "10m"});
  EXPECT_EQ(run.exit_code, 124);
  EXPECT_THAT(run.last_line(),
              AllOf(HasSubstr("timeout: ranks 0, 1 of 2 had not ended"),
                    HasSubstr("rank 1 has not come to all_reduce #2"),
                    HasSubstr("inspect with: sherd flight")))
      << run.output;
}

TEST_F(RunFailuresTest, OthersGoOnIfTheyAreTo) {
  const std::string others_end = "test $RANK = 1 && exit 7; exit 0";
  EXPECT_EQ(Run({"-n", "3", "sh", "-c", others_end}).exit_code, 7);
  const Ended run = Run({"-n", "3", "--on-failure=continue", "sh", "-c",
                         "test $RANK = 1 && exit 7; echo done"});
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("[0] done"), HasSubstr("[2] done"),
                    HasSubstr("rank 1 of 3 failed first: exit code 7")));
  EXPECT_EQ(Run({"-n", "2", "--on-failure=continue", "false"}).exit_code, 1);
}

TEST_F(RunFailuresTest, AStoppedRankDoesNotKeepTheRunFromEnding) {
  // Ranks that are left end with an error here: they make no smaller group.
  const Ended run = Run({"-n", "3", "--on-failure=continue", "--grace=1",
                         kFailingRank, "2", "stop", "1s"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.last_line(), HasSubstr("rank 2 of 3 failed, as ranks 0, 1"));
}

TEST_F(RunFailuresTest, AllRanksAreStartedAgain) {
  // Fails as long as there are three ranks.
  const std::string script = "echo $RANK of $WORLD_SIZE; test $WORLD_SIZE = 2";
  const Ended same =
      Run({"-n", "3", "--max-restarts=2", "--grace=60", "sh", "-c", script});
  EXPECT_EQ(same.exit_code, 1);
  EXPECT_THAT(same.output,
              AllOf(HasSubstr("starting 3 ranks again (restart 1 of 2)"),
                    HasSubstr("starting 3 ranks again (restart 2 of 2)")));
  const std::string dies =
      "echo $RANK of $WORLD_SIZE; test $WORLD_SIZE = 2 || "
      "{ test $RANK = 1 && kill -9 $$; exit 0; }";
  const Ended fewer = Run({"-n", "3", "--max-restarts=2", "--min-ranks=2",
                           "--grace=60", "sh", "-c", dies});
  EXPECT_EQ(fewer.exit_code, 0) << fewer.output;
  EXPECT_THAT(fewer.output,
              AllOf(HasSubstr("starting 2 ranks again (restart 1 of 2)"),
                    HasSubstr("[1] 1 of 2"), Not(HasSubstr("restart 2"))));
  const Ended too_few = Run({"-n", "3", "--max-restarts=2", "--min-ranks=3",
                             "--grace=60", "sh", "-c", dies});
  EXPECT_EQ(too_few.exit_code, 137);
  EXPECT_THAT(too_few.output, Not(HasSubstr("again")));
}

TEST_F(RunFailuresTest, VariablesAndLogsAreWhereTheyAreAskedFor) {
  const std::string logs = folder_ + "/logs";
  const Ended run = Run({"-n", "2", "--env", "A=b c", "--env=D=", "--log-dir",
                         logs, "--max-restarts=1", "sh", "-c",
                         "echo \"$A$D\" on $RANK; echo e >&2; exit $RANK"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.output, HasSubstr("[0] b c on 0"));
  for (const char* start : {"", "/restart-1"}) {
    const auto out = ReadFile(FileSystem::Posix(),
                              absl::StrCat(logs, start, "/rank-1.out"), 1000);
    ASSERT_THAT(out, IsOk());
    EXPECT_EQ(*out, "b c on 1\n");
    const auto err = ReadFile(FileSystem::Posix(),
                              absl::StrCat(logs, start, "/rank-0.err"), 1000);
    ASSERT_THAT(err, IsOk());
    EXPECT_EQ(*err, "e\n");
  }
}

TEST_F(RunFailuresTest, OutputBeforeAFailedStartIsShown) {
  const std::string logs = folder_ + "/logs";
  ASSERT_THAT(FileSystem::Posix().CreateDirectories(logs + "/rank-1.err"),
              IsOk());
  // Opened once rank 0 has printed, and opens it too.
  const std::string pipe = logs + "/rank-1.out";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const Ended run = Run({"-n", "2", "--log-dir", logs, "sh", "-c",
                         absl::StrCat("test $RANK = 1 || { echo why; : <", pipe,
                                      "; }; exec sleep 100000")});
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.output, AllOf(HasSubstr("[0] why"), HasSubstr("rank-1.err")));
}

TEST_F(RunFailuresTest, WrongOptionsAreRefused) {
  for (const auto& [arguments, message] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--env", "A"}, "\"A\" is not NAME=VALUE"},
           {{"--env", "RANK=1"}, "RANK is set by sherd run itself"},
           {{"--on-failure=wait"}, "--on-failure"},
           {{"--max-restarts=-1"}, "--max-restarts"},
           {{"--min-ranks=1"}, "requires --max-restarts"},
           {{"--max-restarts=1", "--min-ranks=3"}, "expected at most 2"},
           {{"--log-dir=d", "--no-prefix"}, "excludes"}}) {
    std::vector<std::string> all = {"-n", "2"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    all.push_back("true");
    const Ended run = Run(all);
    EXPECT_EQ(run.exit_code, 2) << message;
    EXPECT_THAT(run.output, HasSubstr(message));
  }
}

TEST_F(RunFailuresTest, OldDumpsGoAndARunWithoutDumpsLeavesNone) {
  const std::string old = folder_ + "/sherd-flight-0-1-2";
  const std::string young = folder_ + "/sherd-flight-young";
  for (const std::string& path : {old, young}) {
    ASSERT_THAT(FileSystem::Posix().CreateDirectories(path), IsOk());
  }
  const absl::Time before = absl::Now() - absl::Hours(25);
  const timespec time = absl::ToTimespec(before);
  const std::array<timespec, 2> times = {time, time};
  ASSERT_EQ(utimensat(AT_FDCWD, old.c_str(), times.data(), 0), 0);
  EXPECT_EQ(Run({"-n", "1", "true"}).exit_code, 0);
  EXPECT_THAT(FlightDirectories(),
              ::testing::ElementsAre("sherd-flight-young"));
}

}  // namespace
}  // namespace sherd
