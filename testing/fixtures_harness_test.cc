// Fixtures that are broken on purpose (broken_fixtures.cc), programs with a
// main() of their own (own_main.cc), and GoogleTest's options.

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Relative to the working directory of a test.
constexpr char kFixtures[] = "testing/broken_fixtures";
constexpr char kOwnMain[] = "testing/own_main";
// More than any of the runs takes, even where a sanitizer slows it down.
constexpr absl::Duration kPatience = absl::Seconds(120);

struct Result {
  std::optional<ExitStatus> exit;
  std::string output;
};

class FixturesHarnessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = JoinPath(GetKnobOr(Knob::kTestTmpDir, "/tmp"),
                          absl::StrCat("fixtures_", getpid()));
    ASSERT_THAT(FileSystem::Posix().CreateDirectories(directory_), IsOk());
  }
  void TearDown() override {
    EXPECT_THAT(FileSystem::Posix().RemoveAll(directory_), IsOk());
  }

  // Runs `program`; `variables` are "NAME=value".
  Result Run(const char* program, std::vector<std::string> arguments,
             const std::vector<std::string>& variables = {}) {
    arguments.insert(arguments.begin(), program);
    Pipe pipe = MakePipe().value();
    Subprocess process =
        Subprocess::Start({.program = program,
                           .arguments = std::move(arguments),
                           .environment = Environment(variables),
                           .output_fd = pipe.write.get()})
            .value();
    pipe.write.Reset();
    Result result;
    EXPECT_TRUE(ReadToEnd(pipe.read, result.output)) << "it does not end\n"
                                                     << result.output;
    process.SignalGroup(SIGKILL);
    result.exit = process.Wait();
    return result;
  }

  // The output of the tests that `filter` selects, which end with `code`.
  std::string OutputOf(const std::string& filter, int code,
                       const std::vector<std::string>& variables = {}) {
    const Result result =
        Run(kFixtures, {"--gtest_filter=" + filter}, variables);
    EXPECT_TRUE(result.exit->ExitedWith(code))
        << filter << " " << result.exit->ToString() << "\n"
        << result.output;
    EXPECT_THAT(FileSystem::Posix().List(directory_), IsOkAndHolds(IsTidy()))
        << "directories of tests stay behind";
    return result.output;
  }

  static ::testing::Matcher<std::vector<std::string>> IsTidy() {
    return ::testing::Each(Not(::testing::StartsWith("sherd_")));
  }

  std::string directory_;

 private:
  std::vector<std::string> Environment(
      const std::vector<std::string>& variables) const {
    std::vector<std::string> environment;
    for (std::string& variable : OwnEnvironment()) {
      if (!absl::StartsWith(variable, "TEST_") &&
          !absl::StartsWith(variable, "GTEST_") &&
          !absl::StartsWith(variable, "TESTBRIDGE_") &&
          !absl::StartsWith(variable, "SHERD_") &&
          !absl::StartsWith(variable, "XML_OUTPUT_FILE=")) {
        environment.push_back(std::move(variable));
      }
    }
    environment.push_back("TEST_TMPDIR=" + directory_);
    environment.push_back("SHERD_PLUGIN_PATH=backends/gloo");
    // Which would take signals before the harness does, and end with an exit
    // code.
    AddSanitizerOptions(environment, "handle_segv=0:handle_abort=0");
    environment.insert(environment.end(), variables.begin(), variables.end());
    return environment;
  }

  static bool ReadToEnd(const UniqueFd& fd, std::string& output) {
    const Deadline deadline = Deadline::After(kPatience);
    char buffer[1 << 16];
    for (;;) {
      pollfd poll_fd = {fd.get(), POLLIN, 0};
      const int ready = poll(
          &poll_fd, 1,
          static_cast<int>(absl::ToInt64Milliseconds(deadline.Remaining())));
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) return false;
      const ssize_t size = read(fd.get(), buffer, sizeof(buffer));
      if (size <= 0) return true;
      output.append(buffer, size);
    }
  }
};

int CountOf(absl::string_view text, absl::string_view piece) {
  const std::vector<absl::string_view> pieces = absl::StrSplit(text, piece);
  return static_cast<int>(pieces.size()) - 1;
}

TEST_F(FixturesHarnessTest, AProcessThatABodyForksIsNoRank) {
  EXPECT_THAT(OutputOf("*ForkTest.A*", 0), HasSubstr("[  PASSED  ] 10 tests."));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const std::string counted,
      ReadFile(FileSystem::Posix(), JoinPath(directory_, "counted"), 4096));
  // On two ranks each, and nowhere else.
  EXPECT_EQ(CountOf(counted, "body\n"), 20) << counted;
  EXPECT_EQ(CountOf(counted, "TearDown\n"), 20) << counted;
}

TEST_F(FixturesHarnessTest, ADeathTestThatWouldStartRanksIsRefused) {
  for (const char* fixture : {"Fresh", "Persistent"}) {
    EXPECT_THAT(
        OutputOf(absl::StrCat(fixture, "ForkTest.ThreadsafeDeathTest"), 1),
        HasSubstr("death tests on the ranks of a test must be of style fast"));
  }
}

TEST_F(FixturesHarnessTest, ImpossibleWorldSizesOfTheTargetAreRefused) {
  for (const char* size : {"0", "-3", "1000", "abc", "2.5"}) {
    EXPECT_THAT(OutputOf("*WorldTest.*", 1,
                         {absl::StrCat("SHERD_TEST_WORLD_SIZE=", size)}),
                AllOf(HasSubstr(absl::StrCat(
                          "environment variable SHERD_TEST_WORLD_SIZE is \"",
                          size, "\", expected a number from 1 to 256")),
                      HasSubstr("2 FAILED TESTS")));
  }
}

struct Broken {
  const char* fixture;
  // All of them are found in the output.
  std::vector<const char*> report;
  const char* timeout = "300";
};

class BrokenPersistentTests : public FixturesHarnessTest,
                              public ::testing::WithParamInterface<Broken> {};

TEST_P(BrokenPersistentTests, FailAloneWithAReportThatSaysWhy) {
  const std::string output =
      OutputOf(absl::StrCat(GetParam().fixture, ".*"), 1,
               {absl::StrCat("TEST_TIMEOUT=", GetParam().timeout)});
  for (const char* text : GetParam().report) {
    EXPECT_THAT(output, HasSubstr(text));
  }
  EXPECT_THAT(output, Not(HasSubstr("output of the test before")));
}

INSTANTIATE_TEST_SUITE_P(
    All, BrokenPersistentTests,
    ::testing::Values(
        Broken{"PersistentFailure",
               {"[  PASSED  ] 2 tests", "[  FAILED  ] PersistentFailure.IsBrok",
                "root cause: rank 1 failed", "rank 0 was left alone at the end",
                "[rank 1] output of the broken test"}},
        Broken{"PersistentCrash",
               {"[  PASSED  ] 2 tests", "[  FAILED  ] PersistentCrash.IsBroken",
                "root cause: rank 1 was killed by signal 11 (Segmentation "
                "fault) in phase body",
                "[rank 0] [stacks of all threads]", "WaitForever"}},
        Broken{"PersistentExit",
               {"[  PASSED  ] 2 tests",
                "root cause: rank 2 exited with code 0 before the end, in "
                "phase body",
                "rank 0 passed"}},
        Broken{"PersistentHang",
               {"[  PASSED  ] 2 tests", "timed out after 4s",
                "root cause: rank 0 did not end", "in phase body",
                "rank 1 passed", "WaitForever"}},
        Broken{"PersistentSkip",
               {"[  PASSED  ] 2 tests",
                "1 of 3 ranks skipped, expected all or none",
                "rank 1 skipped: no room"}},
        Broken{"PersistentSetUpSuite", {"[rank 1] Expected: ", "on purpose"}},
        Broken{"PersistentTearDownSuite",
               {"[  PASSED  ] 1 test",
                "the ranks that have run tests of this suite do not end as "
                "they should; root cause: rank 1 failed",
                "on purpose", "rank 0 passed"}},
        Broken{"PersistentEndCrash",
               {"[  PASSED  ] 1 test", "do not end as they should",
                "root cause: rank 2 was killed by signal 11 (Segmentation "
                "fault) after the test"}},
        Broken{"PersistentEndHang",
               {"[  PASSED  ] 1 test", "do not end as they should",
                "timed out after ", "root cause: rank 0 did not end",
                "WaitForever"},
               "12"},
        Broken{"PersistentSetUp",
               {"[  PASSED  ] 2 tests", "root cause: rank 1 failed",
                "UNAVAILABLE: ", "rank 1: left the group", "rank 0 failed"}},
        Broken{"PersistentLateDeath",
               {"[  FAILED  ] PersistentLateDeath.Passes",
                "do not end as they should",
                "root cause: rank 0 was killed by signal 11"}},
        Broken{"PersistentDeath",
               {"[  PASSED  ] 2 tests", "do not end as they should",
                "root cause: rank 1 was killed by signal 9"}}),
    [](const auto& info) { return std::string(info.param.fixture); });

TEST_F(FixturesHarnessTest, AfterADeathBetweenTestsTheNextRunsOnNewRanks) {
  OutputOf("PersistentDeath.*", 1);
  for (const char* name : {"behind_0", "behind_1", "behind_2"}) {
    EXPECT_TRUE(FileSystem::Posix().Exists(JoinPath(directory_, name)));
  }
}

TEST_F(FixturesHarnessTest, GoogleTestsOptionsWork) {
  struct Case {
    std::vector<std::string> arguments;
    int code;
    std::vector<const char*> output;
  };
  const Case cases[] = {
      {{"--gtest_filter=*OptionsTest.Passes*"},
       0,
       {"Running 6 tests", "[  PASSED  ] 6 tests."}},
      {{"--gtest_filter=*OptionsTest.*"},
       1,
       {"Running 9 tests", "[  PASSED  ] 8 tests.",
        "[  FAILED  ] All/OptionsTest.FailsOnThree/2", "1 FAILED TEST",
        "YOU HAVE 3 DISABLED TESTS"}},
      {{"--gtest_filter=*OptionsTest.*", "--gtest_also_run_disabled_tests"},
       1,
       {"Running 12 tests", "[  PASSED  ] 11 tests."}},
      {{"--gtest_filter=*OptionsTest.*", "--gtest_shuffle",
        "--gtest_random_seed=7", "--gtest_repeat=3"},
       1,
       {"Repeating all tests (iteration 3)", "[  PASSED  ] 8 tests."}},
      {{"--gtest_filter=*OptionsTest.*:-*/2", "--gtest_repeat=2"},
       0,
       {"Repeating all tests (iteration 2)", "[  PASSED  ] 6 tests."}},
      {{"--gtest_filter=*OptionsTest.*", "--gtest_fail_fast"},
       1,
       {"1 FAILED TEST", "[  SKIPPED ] 3 tests"}},
  };
  for (const Case& test : cases) {
    const Result result = Run(kFixtures, test.arguments);
    EXPECT_TRUE(result.exit->ExitedWith(test.code)) << result.exit->ToString();
    for (const char* text : test.output) {
      EXPECT_THAT(result.output, HasSubstr(text));
    }
    EXPECT_THAT(FileSystem::Posix().List(directory_), IsOkAndHolds(IsTidy()));
  }
}

TEST_F(FixturesHarnessTest, ShardsRunEachTestOnce) {
  int tests = 0;
  for (const char* shard : {"0", "1", "2"}) {
    const Result result = Run(
        kFixtures, {"--gtest_filter=*OptionsTest.Passes*"},
        {"GTEST_TOTAL_SHARDS=3", absl::StrCat("GTEST_SHARD_INDEX=", shard)});
    EXPECT_TRUE(result.exit->ExitedWith(0)) << result.output;
    tests += CountOf(result.output, "[       OK ]");
  }
  EXPECT_EQ(tests, 6);
}

TEST_F(FixturesHarnessTest, AFailureCanStopInTheDebugger) {
  const Result result = Run(kFixtures, {"--gtest_filter=PersistentFailure.*",
                                        "--gtest_break_on_failure"});
  EXPECT_TRUE(result.exit->signal().has_value()) << result.exit->ToString();
}

TEST_F(FixturesHarnessTest, AMainOfTheUsersOwnWorks) {
  const Result result = Run(kOwnMain, {});
  EXPECT_TRUE(result.exit->ExitedWith(0)) << result.output;
  EXPECT_THAT(result.output, HasSubstr("[  PASSED  ] 4 tests."));
}

TEST_F(FixturesHarnessTest, AMainThatForgetsTheArgumentsIsToldSo) {
  const Result result = Run(kOwnMain, {"forgets_arguments"});
  EXPECT_TRUE(result.exit->ExitedWith(1)) << result.output;
  EXPECT_EQ(CountOf(result.output,
                    "main() must hand its arguments to "
                    "InitGoogleTest before RUN_ALL_TESTS()"),
            // In the root cause and as a failure, in each of four tests.
            8)
      << result.output;
}

TEST_F(FixturesHarnessTest, AMainThatDoesNotComeToTheTestsIsSeen) {
  const Result result = Run(kOwnMain, {"returns_at_once"});
  EXPECT_TRUE(result.exit->ExitedWith(1)) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("exited with code 0 before the end, in phase "
                              "main(), before the tests"),
                    HasSubstr("4 FAILED TESTS")));
}

}  // namespace
}  // namespace sherd::testing::internal
