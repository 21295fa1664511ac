#include "sherd/testing/external_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/testing/launched_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/scoped_directory.h"

namespace sherd::testing::internal {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kProgram[] = "testing/external_tests";
constexpr int kRanks = 3;

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

int Count(absl::string_view text, absl::string_view what) {
  int count = 0;
  for (size_t i = 0; (i = text.find(what, i)) != absl::string_view::npos; ++i) {
    ++count;
  }
  return count;
}

// A job of `external_tests`.
class ExternalRanksTest : public ::testing::Test {
 protected:
  using Flags = std::vector<std::string>;

  ExternalRanksTest() : directory_(ScopedDirectory::Make()) {}

  void SetUp() override { ASSERT_THAT(directory_, IsOk()); }

  std::string PathOf(absl::string_view name) const {
    return JoinPath(directory_->path(), std::string(name));
  }

  // This environment without what Bazel and launchers say of this test.
  std::vector<std::string> Environment() const {
    std::vector<std::string> environment;
    for (std::string& variable : OwnEnvironment()) {
      const auto begins = [&](absl::string_view name) {
        return absl::StartsWith(variable, name);
      };
      if (!begins("GTEST_") && !begins("TEST_") && !begins("XML_OUTPUT_FILE") &&
          !begins("SHERD_TEST_") && !begins("RANK=") &&
          !begins("WORLD_SIZE=") && !begins("TMPDIR=")) {
        environment.push_back(std::move(variable));
      }
    }
    environment.insert(
        environment.end(),
        {absl::StrCat("XML_OUTPUT_FILE=", PathOf("result.xml")),
         absl::StrCat("TEST_TMPDIR=", directory_->path()),
         absl::StrCat("TEST_PREMATURE_EXIT_FILE=", PathOf("premature")),
         "TEST_TIMEOUT=120", "SHERD_PLUGIN_PATH=backends/gloo"});
    return environment;
  }

  Subprocess Start(const std::string& program, Flags arguments,
                   const std::vector<std::string>& environment,
                   const std::string& output) {
    const UniqueFd fd(
        open(output.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
    absl::StatusOr<Subprocess> process =
        Subprocess::Start({.program = program,
                           .arguments = std::move(arguments),
                           .environment = environment,
                           .output_fd = fd.get()});
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  }

  // Starts the ranks as torchrun does, rank r with flags(r), and waits for all.
  void RunRanks(const std::function<Flags(int rank)>& flags,
                const std::vector<std::string>& variables = {},
                int started = kRanks) {
    std::vector<Subprocess> processes;
    for (int r = 0; r < started; ++r) {
      std::vector<std::string> environment = Environment();
      environment.insert(
          environment.end(),
          {absl::StrCat("RANK=", r), absl::StrCat("WORLD_SIZE=", kRanks),
           absl::StrCat("SHERD_INIT_METHOD=file://", PathOf("rendezvous"))});
      environment.insert(environment.end(), variables.begin(), variables.end());
      Flags arguments = flags(r);
      arguments.insert(arguments.begin(), "external_tests");
      processes.push_back(
          Start(kProgram, arguments, environment, OutputFile(r)));
    }
    statuses_.clear();
    for (Subprocess& process : processes) statuses_.push_back(process.Wait());
  }

  void RunRanks(const std::string& filter) {
    RunRanks([&](int) { return Flags{"--gtest_filter=" + filter}; });
  }

  std::string OutputFile(int rank) const {
    return PathOf(absl::StrCat("output.", rank));
  }
  std::string Output(int rank) const { return Read(OutputFile(rank)); }
  std::string Xml() const { return Read(PathOf("result.xml")); }

  void ExpectAllExitWith(int code) {
    for (size_t r = 0; r < statuses_.size(); ++r) {
      EXPECT_TRUE(statuses_[r].ExitedWith(code))
          << "rank " << r << " " << statuses_[r].ToString() << "\n"
          << Output(static_cast<int>(r));
    }
  }

  // But for what main() prints and how a warning may go.
  void ExpectOthersSayNothingOfTests() {
    for (int r = 1; r < kRanks; ++r) {
      EXPECT_THAT(Output(r),
                  AllOf(Not(HasSubstr("[ RUN")), Not(HasSubstr("Failure")),
                        Not(HasSubstr("PASSED")), Not(HasSubstr("planted"))));
    }
  }

  absl::StatusOr<ScopedDirectory> directory_;
  std::vector<ExitStatus> statuses_;
};

TEST_F(ExternalRanksTest, PassingTestsGiveOneReport) {
  RunRanks("ExternalTest.Passes:ExternalTest.Follows");
  ExpectAllExitWith(0);
  EXPECT_THAT(Output(0), HasSubstr("[  PASSED  ] 2 tests."));
  ExpectOthersSayNothingOfTests();
  EXPECT_THAT(Xml(), AllOf(HasSubstr("tests=\"2\" failures=\"0\""),
                           HasSubstr("name=\"Passes\"")));
  EXPECT_FALSE(std::filesystem::exists(PathOf("premature")));
}

TEST_F(ExternalRanksTest, RankZeroAloneWritesWhatAFlagAsksFor) {
  RunRanks([this](int r) {
    return Flags{"--gtest_filter=ExternalTest.Follows",
                 absl::StrCat("--gtest_output=json:", PathOf("report."), r)};
  });
  ExpectAllExitWith(0);
  EXPECT_TRUE(std::filesystem::exists(PathOf("report.0")));
  EXPECT_FALSE(std::filesystem::exists(PathOf("report.1")));
  EXPECT_FALSE(std::filesystem::exists(PathOf("report.2")));
}

TEST_F(ExternalRanksTest, AFailureIsReportedOnceAndIsEverybodysVerdict) {
  RunRanks("ExternalTest.Passes:*OnRank1-*Dies*");
  ExpectAllExitWith(1);
  EXPECT_EQ(Count(Output(0), "[rank 1] "), 2) << Output(0);
  EXPECT_EQ(Count(Output(0), "root cause: rank 1 failed at"), 2);
  EXPECT_THAT(Output(0), AllOf(HasSubstr("[  PASSED  ] 1 test."),
                               HasSubstr("[  FAILED  ] 2 tests")));
  ExpectOthersSayNothingOfTests();
  EXPECT_THAT(Xml(), HasSubstr("tests=\"3\" failures=\"2\""));
}

TEST_F(ExternalRanksTest, SkipsAreUnanimous) {
  RunRanks("ExternalTest.SkipsEverywhere");
  ExpectAllExitWith(0);
  EXPECT_THAT(Output(0), AllOf(HasSubstr("[  SKIPPED ] 1 test"),
                               HasSubstr("CUDA is not available. planted")));
  ExpectOthersSayNothingOfTests();
}

TEST_F(ExternalRanksTest, ASkipOfOneRankIsAFailure) {
  RunRanks("ExternalTest.SkipsOnRank2");
  ExpectAllExitWith(1);
  EXPECT_THAT(Output(0),
              AllOf(HasSubstr("1 of 3 ranks skipped, expected all or none"),
                    HasSubstr("rank 2 skipped: planted")));
}

TEST_F(ExternalRanksTest, ATestMayHaveFewerRanksThanTheJobButNotMore) {
  RunRanks("SmallExternalTest.*:LargeExternalTest.*");
  ExpectAllExitWith(0);
  EXPECT_THAT(
      Output(0),
      AllOf(HasSubstr("[  PASSED  ] 1 test."), HasSubstr("[  SKIPPED ] 1 test"),
            HasSubstr("Skipped due to small world size. The test has "
                      "9 ranks, and RANK and WORLD_SIZE started 3")));
}

TEST_F(ExternalRanksTest, OtherTestsRunOnRankZeroOnly) {
  RunRanks("*InOneProcess:ExternalTest.Follows");
  ExpectAllExitWith(0);
  EXPECT_THAT(Output(0), AllOf(HasSubstr("[  PASSED  ] 3 tests."),
                               HasSubstr("a plain test runs here"),
                               HasSubstr("threads run here")));
  for (int r : {1, 2}) EXPECT_THAT(Output(r), Not(HasSubstr("here")));
}

TEST_F(ExternalRanksTest, AFailureOfAnotherTestIsEverybodysVerdict) {
  RunRanks("PlainExternalTest.Fails");
  ExpectAllExitWith(1);
  ExpectOthersSayNothingOfTests();
}

TEST_F(ExternalRanksTest, ARankThatDiesIsNamedAndNobodyHangs) {
  RunRanks("ExternalTest.DiesOnRank1:ExternalTest.Follows");
  EXPECT_TRUE(statuses_[1].KilledBy(SIGKILL));
  EXPECT_TRUE(statuses_[0].ExitedWith(1)) << statuses_[0].ToString();
  EXPECT_TRUE(statuses_[2].ExitedWith(1)) << statuses_[2].ToString();
  EXPECT_THAT(
      Output(0),
      AllOf(HasSubstr("root cause: rank 1 "), HasSubstr("process has ended"),
            HasSubstr("rank 1 was lost in ExternalTest.DiesOnRank1, and this "
                      "test needs it")));
  EXPECT_THAT(Xml(), HasSubstr("tests=\"2\" failures=\"2\""));
}

TEST_F(ExternalRanksTest, ARankThatDoesNotReturnWritesItsStacksAndEnds) {
  RunRanks("HangingExternalTest.*");
  EXPECT_TRUE(statuses_[0].ExitedWith(1)) << statuses_[0].ToString();
  EXPECT_TRUE(statuses_[1].ExitedWith(1)) << statuses_[1].ToString();
  EXPECT_TRUE(statuses_[2].ExitedWith(10)) << statuses_[2].ToString();
  EXPECT_THAT(Output(2), AllOf(HasSubstr("pause"),
                               HasSubstr("[rank 2] does not return in phase "
                                         "body")));
  EXPECT_THAT(Output(0), AllOf(HasSubstr("root cause: rank 2"),
                               HasSubstr("in phase body")));
}

TEST_F(ExternalRanksTest, ShufflesWithOneSeedOnly) {
  const auto flags = [](int seed) {
    return Flags{"--gtest_filter=ExternalTest.Passes:*Follows:*FirstRanks",
                 "--gtest_shuffle", "--gtest_repeat=2",
                 absl::StrCat("--gtest_random_seed=", seed)};
  };
  RunRanks([&](int) { return flags(17); });
  ExpectAllExitWith(0);
  EXPECT_EQ(Count(Output(0), "[  PASSED  ] 3 tests."), 2);

  RunRanks([&](int r) { return flags(17 + r); });
  ExpectAllExitWith(1);
  EXPECT_THAT(Output(0),
              AllOf(HasSubstr("rank 1 is about to run other tests than rank 0"),
                    HasSubstr("shuffle with seed 18"),
                    HasSubstr("the same --gtest_random_seed=N")));
}

TEST_F(ExternalRanksTest, ShardsAlike) {
  int passed = 0;
  for (int shard : {0, 1}) {
    RunRanks(
        [](int) {
          return Flags{
              "--gtest_filter=ExternalTest.Passes:*Follows:*FirstRanks:"
              "*InOneProcess"};
        },
        {"GTEST_TOTAL_SHARDS=2", absl::StrCat("GTEST_SHARD_INDEX=", shard)});
    ExpectAllExitWith(0);
    passed += Count(Xml(), "status=\"run\"");
  }
  EXPECT_EQ(passed, 5);
}

TEST_F(ExternalRanksTest, RanksThatDoNotComeAreNamed) {
  RunRanks([](int) { return Flags{"--gtest_filter=ExternalTest.Passes"}; },
           {"SHERD_TIMEOUT=1s"}, /*started=*/2);
  ExpectAllExitWith(1);
  EXPECT_THAT(Output(0), HasSubstr("ranks that did not come in time: 2"));
}

TEST_F(ExternalRanksTest, AVariableTurnsItOff) {
  RunRanks([](int) { return Flags{"--gtest_filter=ExternalTest.Passes"}; },
           {"SHERD_TEST_EXTERNAL=0"}, /*started=*/1);
  ExpectAllExitWith(0);
  EXPECT_THAT(Output(0), HasSubstr("[  PASSED  ] 1 test."));
}

class MpirunTest : public ExternalRanksTest {
 protected:
  void SetUp() override {
    ExternalRanksTest::SetUp();
    mpirun_ = FindLauncher("mpirun");
    if (!mpirun_.ok()) GTEST_SKIP() << mpirun_.status().message();
    // Short, for the sockets of Open MPI.
    session_ = "/tmp/sherd_XXXXXX";
    ASSERT_NE(mkdtemp(session_.data()), nullptr);
  }
  void TearDown() override {
    if (!session_.empty()) {
      EXPECT_THAT(FileSystem::Posix().RemoveAll(session_), IsOk());
    }
  }

  ExitStatus RunUnderMpirun(const std::string& filter) {
    std::vector<std::string> environment = Environment();
    environment.insert(
        environment.end(),
        {"TMPDIR=" + session_, "HOME=" + session_, "OMPI_ALLOW_RUN_AS_ROOT=1",
         "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "PRTE_ALLOW_RUN_AS_ROOT=1",
         "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1",
         "OMPI_MCA_rmaps_base_oversubscribe=1",
         "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe",
         "OMPI_MCA_btl_vader_backing_directory=" + session_,
         "OMPI_MCA_plm=isolated", "OMPI_MCA_hwloc_base_binding_policy=none"});
    return Start(*mpirun_,
                 {"mpirun", "-n", absl::StrCat(kRanks), kProgram,
                  "--gtest_filter=" + filter},
                 environment, OutputFile(0))
        .Wait();
  }

  absl::StatusOr<std::string> mpirun_;
  std::string session_;
};

TEST_F(MpirunTest, PassingTestsGiveOneReport) {
  const ExitStatus status =
      RunUnderMpirun("ExternalTest.Passes:*FirstRanks:*InOneProcess");
  EXPECT_TRUE(status.ExitedWith(0)) << status.ToString() << Output(0);
  EXPECT_EQ(Count(Output(0), "[  PASSED  ] 4 tests."), 1) << Output(0);
  EXPECT_EQ(Count(Output(0), "[ RUN "), 4);
  EXPECT_EQ(Count(Output(0), "a plain test runs here"), 1);
  EXPECT_THAT(Xml(), HasSubstr("tests=\"4\" failures=\"0\""));
}

TEST_F(MpirunTest, AFailureIsReportedOnce) {
  const ExitStatus status =
      RunUnderMpirun("ExternalTest.FailsOnRank1:ExternalTest.Follows");
  EXPECT_TRUE(status.ExitedWith(1)) << status.ToString() << Output(0);
  EXPECT_EQ(Count(Output(0), "[rank 1] "), 1) << Output(0);
  EXPECT_EQ(Count(Output(0), "[  FAILED  ] 1 test, listed below:"), 1);
  EXPECT_THAT(Xml(), HasSubstr("tests=\"2\" failures=\"1\""));
}

TEST_F(MpirunTest, ARankThatDiesEndsTheJobAndIsNamed) {
  const ExitStatus status = RunUnderMpirun("ExternalTest.DiesOnRank1");
  EXPECT_FALSE(status.ExitedWith(0));
  EXPECT_THAT(Output(0), AnyOf(HasSubstr("rank 1 with PID"),
                               HasSubstr("root cause: rank 1")));
}

}  // namespace
}  // namespace sherd::testing::internal
