// The harness against tests that are broken on purpose (broken_tests.cc).

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/testing/harness/launched_ranks.h"
#include "sherd/testing/kits/hang_seconds.h"
#include "sherd/testing/kits/sanitized.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::SizeIs;

// Relative to the working directory of a test.
constexpr char kBrokenTests[] = "testing/broken_tests";
// More than any of the runs takes, even where a sanitizer slows it down.
constexpr absl::Duration kPatience = absl::Seconds(90);

// A process whose output is collected.
class BrokenRun {
 public:
  // Of one name in any suite, or with the suite's name and "*".
  // `launcher` starts the ranks; empty: the harness does. `further` are
  // variables ("NAME=value").
  BrokenRun(const std::string& test, const std::string& directory,
            const std::string& launcher = "",
            const std::vector<std::string>& further = {}) {
    std::vector<std::string> environment;
    for (std::string& variable : OwnEnvironment()) {
      if (!absl::StartsWith(variable, "TEST_") &&
          !absl::StartsWith(variable, "GTEST_") &&
          !absl::StartsWith(variable, "TESTBRIDGE_") &&
          !absl::StartsWith(variable, "SHERD_FLIGHT_DIR=") &&
          !absl::StartsWith(variable, "XML_OUTPUT_FILE=")) {
        environment.push_back(std::move(variable));
      }
    }
    environment.push_back("TEST_TMPDIR=" + directory);
    environment.push_back("SHERD_PLUGIN_PATH=backends/gloo");
    // Which would take signals before the harness does, and end with an exit
    // code.
    AddSanitizerOptions(environment, "handle_segv=0:handle_abort=0");
    environment.push_back("SHERD_TEST_LAUNCHER=" + launcher);
    environment.insert(environment.end(), further.begin(), further.end());
    Pipe pipe = MakePipe().value();
    output_fd_ = std::move(pipe.read);
    process_.emplace(
        Subprocess::Start(
            {.program = kBrokenTests,
             .arguments = {kBrokenTests,
                           absl::StrCat(
                               "--gtest_filter=",
                               absl::StrContains(test, ".") ? "" : "*.", test)},
             .environment = std::move(environment),
             .output_fd = pipe.write.get()})
            .value());
  }

  Subprocess& process() { return *process_; }
  const std::string& output() const { return output_; }

  // Reads the output to its end. False if it took too long.
  bool Finish() {
    const Deadline deadline = Deadline::After(kPatience);
    char buffer[1 << 16];
    for (;;) {
      pollfd fd = {output_fd_.get(), POLLIN, 0};
      const int ready = poll(
          &fd, 1,
          static_cast<int>(absl::ToInt64Milliseconds(deadline.Remaining())));
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) return false;
      const ssize_t size = read(output_fd_.get(), buffer, sizeof(buffer));
      if (size <= 0) break;
      output_.append(buffer, size);
    }
    process_->Wait();
    return true;
  }

 private:
  UniqueFd output_fd_;
  std::optional<Subprocess> process_;
  std::string output_;
};

class HarnessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = JoinPath(GetKnobOr(Knob::kTestTmpDir, "/tmp"),
                          absl::StrCat("harness_", getpid()));
    ASSERT_THAT(FileSystem::Posix().CreateDirectories(directory_), IsOk());
  }
  void TearDown() override {
    EXPECT_THAT(FileSystem::Posix().RemoveAll(directory_), IsOk());
  }

  // The output of a run that ends with `code`.
  std::string OutputOf(const std::string& test, int code) {
    BrokenRun run(test, directory_, launcher_, further_variables_);
    EXPECT_TRUE(run.Finish()) << "it does not end\n" << run.output();
    const auto& status = run.process().Poll();
    EXPECT_TRUE(status && status->ExitedWith(code))
        << test << " " << (status ? status->ToString() : "runs") << "\n"
        << run.output();
    EXPECT_THAT(FileSystem::Posix().List(directory_), IsOkAndHolds(IsTidy()))
        << "directories of tests stay behind";
    return run.output();
  }
  std::string Failure(const std::string& test) { return OutputOf(test, 1); }

  static ::testing::Matcher<std::vector<std::string>> IsTidy() {
    return ::testing::Each(Not(::testing::StartsWith("sherd_")));
  }

  void ExpectNoOrphans();
  void ExpectLeftoversDie(const std::string& test);

  // True once no directory of a test is left.
  bool AwaitTidy() {
    const Deadline deadline = Deadline::After(kPatience);
    while (!deadline.HasPassed()) {
      const auto names = FileSystem::Posix().List(directory_);
      if (names.ok() && ::testing::Matches(IsTidy())(std::vector<std::string>(
                            names->begin(), names->end()))) {
        return true;
      }
      poll(nullptr, 0, 5);
    }
    return false;
  }

  // A process number that a rank wrote, once it has.
  pid_t AwaitPid(const std::string& name) {
    const Deadline deadline = Deadline::After(kPatience);
    const std::string path = JoinPath(directory_, name);
    while (!deadline.HasPassed()) {
      if (FileSystem::Posix().Exists(path).value_or(false)) {
        const auto text = ReadFile(FileSystem::Posix(), path, 32);
        int pid = -1;
        EXPECT_TRUE(text.ok() && absl::SimpleAtoi(*text, &pid));
        return pid;
      }
      poll(nullptr, 0, 5);
    }
    ADD_FAILURE() << path << " does not appear";
    return -1;
  }

  std::string directory_;
  std::string launcher_;
  std::vector<std::string> further_variables_;
};

TEST_F(HarnessTest, ATestThatPassesPassesAndIsQuiet) {
  EXPECT_THAT(OutputOf("Passes", 0), AllOf(HasSubstr("[  PASSED  ] 1 test."),
                                           Not(HasSubstr("[rank"))));
}

std::string TimedOut() {
  return absl::StrCat("timed out after ", kHangSeconds, "s");
}

struct Broken {
  const char* test;
  // All of them are found in the output.
  std::vector<std::string> report;
  // It is the timeout that ends it. Otherwise what the ranks do ends it.
  bool times_out = false;
};

void ExpectReport(const std::string& output, const Broken& broken) {
  for (const std::string& text : broken.report) {
    // Not HasSubstr, which would print the whole flood of output.
    EXPECT_TRUE(absl::StrContains(output, text))
        << text << "\ndoes not stand in\n"
        << output.substr(0, 20'000);
  }
  EXPECT_EQ(absl::StrContains(output, "timed out after"), broken.times_out);
}

class BrokenTests : public HarnessTest,
                    public ::testing::WithParamInterface<Broken> {};

TEST_P(BrokenTests, FailWithAReportOfTheReason) {
  ExpectReport(Failure(GetParam().test), GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Crash, BrokenTests,
    ::testing::Values(
        Broken{"CrashesBeforeTheBody",
               {"root cause: rank 1 was killed by signal 11", "in phase SetUp",
                "rank 0 was stopped by the harness in phase SetUp"}},
        Broken{"CrashesInTheBody",
               {"root cause: rank 1 was killed by signal 11 (Segmentation "
                "fault) in phase body",
                "in phase body, in ", "RankBody", "[rank 1] [crash] signal 11",
                // Where the others stood.
                "[rank 0] [stacks of all threads]", "WaitForever"}},
        Broken{"CrashesAfterTheTest",
               {"root cause: rank 2 was killed by signal 11 (Segmentation "
                "fault) after the test",
                "rank 0 passed"}},
        Broken{"CrashesInAStaticDestructor",
               {"root cause: rank 1 was killed by signal 11 (Segmentation "
                "fault) after the test",
                "CrashesInItsDestructor", "rank 0 passed"}},
        Broken{"CrashesWithOutput",
               {"root cause: rank 1 was killed by signal 11",
                "[rank 1] printed before the crash"}},
        Broken{"OverflowsItsStack",
               {"root cause: rank 1 was killed by signal 11 (Segmentation "
                "fault) in phase body, in ",
                "Recurse", "rank 0 passed"}},
        Broken{"Terminates",
               {"root cause: rank 2 was killed by signal 6 (Aborted) in phase "
                "body, in ",
                "RankBody", "rank 0 passed"}},
        Broken{"ThrowsInAThread",
               {"root cause: rank 2 was killed by signal 6 (Aborted) in phase "
                "body",
                "[rank 2]   what():  thrown in a thread", "rank 0 passed"}},
        Broken{"AbortsInADestructor",
               {"root cause: rank 0 was killed by signal 6 (Aborted)",
                "AbortsInItsDestructor"}},
        Broken{"AbortsInAStaticDestructor",
               {"root cause: rank 0 was killed by signal 6 (Aborted) after "
                "the test",
                "AbortsInItsDestructor", "rank 2 passed"}},
        Broken{"OneRankIsKilledWhileTheOthersWait",
               {"root cause: rank 1 was killed by signal 9 (Killed) in phase "
                "body",
                "[rank 0] ", "[rank 2] ", "UNAVAILABLE: ", "rank 1: died"}}),
    [](const auto& info) { return std::string(info.param.test); });

INSTANTIATE_TEST_SUITE_P(
    Exit, BrokenTests,
    ::testing::Values(
        Broken{"ExitsBeforeTheEnd",
               {"root cause: rank 2 exited with code 0 before the end, in "
                "phase body"}},
        Broken{"ExitsInTheBody",
               {"root cause: rank 1 exited with code 0 before the end, in "
                "phase body",
                "rank 0 passed"}},
        Broken{"ClosesAllItsFiles",
               {"root cause: rank 2 result pipe: DATA_LOSS: closed before the "
                "end",
                "rank 2 was stopped by the harness"}},
        Broken{"ExitsWithTheCodeOfASkip",
               {"exited with code 81 before the end"}},
        Broken{"ClosesItsResultPipe",
               {"root cause: rank 0 result pipe: DATA_LOSS: closed before the "
                "end",
                "rank 0 was stopped by the harness"}},
        Broken{"WritesGarbageToItsResultPipe",
               {"result pipe: DATA_LOSS: a frame of "}},
        Broken{"DoesNotDieAsAnnounced",
               {"rank 1 was expected to be killed by signal 9, but exited with "
                "code 0"}},
        Broken{"DiesOfAnotherSignal",
               {"rank 1 was expected to be killed by signal 9, but was killed "
                "by signal 2"}}),
    [](const auto& info) { return std::string(info.param.test); });

INSTANTIATE_TEST_SUITE_P(
    Skip, BrokenTests,
    ::testing::Values(Broken{"OneRankSkips",
                             {"1 of 3 ranks skipped, expected all or none",
                              "rank 0 was stopped by the harness in phase body",
                              "rank 1 skipped: no room"}},
                      Broken{"RanksSkipForDifferentReasons",
                             {"the ranks skipped for different reasons",
                              "rank 0 skipped: Test skipped for ROCm",
                              "rank 1 skipped: CUDA is not available."}}),
    [](const auto& info) { return std::string(info.param.test); });

INSTANTIATE_TEST_SUITE_P(
    Hang, BrokenTests,
    ::testing::Values(
        Broken{"HangsInSetUp",
               {TimedOut(), "root cause: rank 1 did not end", "in phase SetUp",
                "[rank 1] [stacks of all threads]", "rank 0 passed"},
               /*times_out=*/true},
        Broken{"HangsInTheBody",
               {TimedOut(),
                absl::StrCat("did not end within ", kHangSeconds,
                             "s; in phase body"),
                "[rank 0] [stacks of all threads]",
                "[rank 1] [stacks of all threads]",
                "[rank 2] [stacks of all threads]", "WaitForever"},
               /*times_out=*/true},
        Broken{"HangsInTearDown",
               {TimedOut(), "root cause: rank 1 did not end",
                "in phase TearDown", "rank 0 passed"},
               /*times_out=*/true},
        Broken{"HangsAtExit",
               {TimedOut(), "root cause: rank 0 did not end", "after the test",
                "rank 2 passed"},
               /*times_out=*/true},
        Broken{"HangsInAStaticDestructor",
               {TimedOut(), "root cause: rank 2 did not end", "after the test",
                "HangsInItsDestructor", "rank 0 passed"},
               /*times_out=*/true},
        Broken{
            "IsStopped",
            {TimedOut(), "root cause: rank 2 stood still, stopped by a signal",
             "in phase body",
             // It went on for them.
             "[rank 2] [stacks of all threads]", "rank 0 passed"},
            /*times_out=*/true},
        Broken{"IgnoresSigterm",
               {"[ranks 1, 2] Failed\nso that rank 0 is stopped",
                "rank 0 was stopped by the harness in phase body"}}),
    [](const auto& info) { return std::string(info.param.test); });

INSTANTIATE_TEST_SUITE_P(
    Expectation, BrokenTests,
    ::testing::Values(
        Broken{"FailsInAThread",
               {"root cause: rank 2 failed at testing/harness/broken_tests.cc:",
                "[rank 2] Expected: (rank()) != (2)", "in a thread",
                "rank 0 passed"}},
        Broken{"FailsInAThreadAfterTheTest",
               {"root cause: rank 1 failed at testing/harness/broken_tests.cc:",
                "[rank 1] Failed\nafter the test", "rank 0 passed"}},
        Broken{"ThrowsANumber",
               {"root cause: rank 1 failed",
                "[rank 1] Failed\nthe body ended with an exception: of unknown "
                "type",
                "rank 0 passed"}},
        Broken{"Throws",
               {"root cause: rank 1 failed",
                "[rank 1] Failed\nthe body ended with an exception: thrown on "
                "purpose",
                "[rank 0] ", "[rank 2] ", "rank 1: left the group"}},
        Broken{"OneRankFailsWhileTheOthersWait",
               {"root cause: rank 1 failed", "[rank 1] ", "the root cause",
                "rank 1: left the group"}},
        Broken{"AllRanksFailAlike", {"[ranks 0-2] Expected equality"}},
        Broken{"FloodsTheResultPipe",
               {"[ranks 0-2] Failed\nlong yyy", "bytes, cut)",
                "[ranks 0-2] Failed\nnumber 0",
                "[rank 2] 99801 further failures"}},
        Broken{"AsksForAnUnknownBackend", {"Backend nosuch not supported!"}},
        Broken{"FloodsItsOutput",
               {"[rank 1] 0 xxx", "bytes left out", "[rank 1] last line",
                "[rank 2] last line"}}),
    [](const auto& info) { return std::string(info.param.test); });

TEST_F(HarnessTest, EachFailureIsReportedOnce) {
  const std::string output = Failure("AllRanksFailAlike");
  const std::vector<std::string> pieces =
      absl::StrSplit(output, "Expected equality of these values");
  // The root cause quotes it once.
  EXPECT_EQ(pieces.size(), 3) << output;
}

TEST_F(HarnessTest, OnlyTheRankThatFailedIsNamed) {
  EXPECT_THAT(Failure("OneRankFails"),
              AllOf(HasSubstr("root cause: rank 1 failed"),
                    HasSubstr("rank 0 was left alone at the end"),
                    Not(HasSubstr("barrier at the end"))));
}

TEST_F(HarnessTest, AFloodIsCut) {
  EXPECT_LT(Failure("FloodsItsOutput").size(), 4u << 20);
  EXPECT_LT(Failure("FloodsTheResultPipe").size(), 8u << 20);
  if (kIsSanitized) return;
  rusage usage;
  ASSERT_EQ(getrusage(RUSAGE_CHILDREN, &usage), 0);
  EXPECT_LT(usage.ru_maxrss, 96 << 10) << "kB, of 100 MB that a rank wrote";
}

TEST_F(HarnessTest, BytesThatAreNotTextHarmNeitherTheReportNorTheXml) {
  const std::string xml_path = JoinPath(directory_, "report.xml");
  further_variables_ = {"XML_OUTPUT_FILE=" + xml_path};
  const std::string output = Failure("PrintsBytesThatAreNotText");
  EXPECT_THAT(output, HasSubstr("[ranks 0-2] Failed\n\\0\\x01\\xff\\xc3(]]>"
                                "\\xed\\xa0\\x80red"));
  EXPECT_EQ(output, PrintableText(output));
  const auto xml = ReadFile(FileSystem::Posix(), xml_path, int64_t{1} << 24);
  ASSERT_THAT(xml, IsOk());
  EXPECT_EQ(*xml, PrintableText(*xml));
  // In an attribute, and in CDATA, which must not contain its own end.
  EXPECT_THAT(*xml, AllOf(HasSubstr("[ranks 0-2] Failed&#x0A;\\0\\x01\\xff"),
                          HasSubstr("\\xc3(]]>]]&gt;<![CDATA["),
                          HasSubstr("root cause: rank ")));
}

TEST_F(HarnessTest, LinesOfThreadsStayWhole) {
  const std::string output = Failure("WritesLinesFromManyThreads");
  int lines = 0;
  const std::vector<std::string> all = absl::StrSplit(output, '\n');
  for (const std::string& line : all) {
    if (!absl::StrContains(line, '<') || !absl::StartsWith(line, "[rank ")) {
      continue;
    }
    ++lines;
    const std::string text = line.substr(sizeof("[rank 0] ") - 1);
    EXPECT_EQ(text, absl::StrCat("<", std::string(100, text[1]), ">"));
  }
  EXPECT_EQ(lines, 3 * 4 * 500);
}

TEST_F(HarnessTest, TheFlightRecorderReportsTheMissingRank) {
  const std::string kept = JoinPath(directory_, "kept");
  ASSERT_THAT(FileSystem::Posix().CreateDirectories(kept), IsOk());
  further_variables_ = {"TEST_UNDECLARED_OUTPUTS_DIR=" + kept};
  const std::string output = Failure("OneRankStaysAwayFromABarrier");
  EXPECT_THAT(
      output,
      AllOf(HasSubstr("root cause: rank 1 kept others waiting"),
            HasSubstr("flight recorder: group \"default\": rank 1 has not "
                      "come to barrier #3"),
            HasSubstr("rank 1 is 1 call behind, its last is barrier #2 "
                      "(completed)"),
            // The table, for all ranks.
            HasSubstr("3 dumps, of ranks 0-2"),
            HasSubstr("[rank 1] [stacks of all threads]")));
  const std::string test =
      JoinPath(kept, "ShortTest.OneRankStaysAwayFromABarrier");
  EXPECT_THAT(output, HasSubstr("whole outputs and dumps: " + test));
  EXPECT_THAT(
      FileSystem::Posix().List(test),
      IsOkAndHolds(IsSupersetOf({"flight.rank-0.json", "flight.rank-1.json",
                                 "flight.rank-2.json", "rank-1.log"})));
}

TEST_F(HarnessTest, OutputThatIsTooLongForTheReportIsKeptAsAWhole) {
  const std::string kept = JoinPath(directory_, "kept");
  ASSERT_THAT(FileSystem::Posix().CreateDirectories(kept), IsOk());
  further_variables_ = {"TEST_UNDECLARED_OUTPUTS_DIR=" + kept};
  Failure("FloodsItsOutput");
  const auto file = FileSystem::Posix().OpenForRead(
      JoinPath(kept, "BrokenTest.FloodsItsOutput/rank-1.log"));
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT((*file)->Size(),
              IsOkAndHolds(::testing::AllOf(::testing::Gt(60'000'000),
                                            ::testing::Lt(70'000'000))));
  OutputOf("ClosesItsOutput", 0);
  EXPECT_THAT(FileSystem::Posix().List(kept), IsOkAndHolds(SizeIs(1)))
      << "of a test that passed";
}

TEST_F(HarnessTest, RanksThatCannotBeStartedAreReported) {
  EXPECT_THAT(Failure("HasTooFewFiles"),
              AllOf(HasSubstr("the ranks could not be started: "),
                    HasSubstr(" of 3: "), HasSubstr("Too many open files")));
  EXPECT_THAT(Failure("HasTooFewProcesses"),
              AllOf(HasSubstr("the ranks could not be started: "),
                    HasSubstr("rank 0 of 3: "),
                    HasSubstr("Resource temporarily unavailable")));
}

TEST_F(HarnessTest, ATestThatAllRanksSkipIsSkippedWithItsReason) {
  EXPECT_THAT(OutputOf("AllRanksSkip", 0),
              AllOf(HasSubstr("[  SKIPPED ] 1 test"),
                    HasSubstr("Skipped due to small world size. on purpose")));
}

TEST_F(HarnessTest, RpcIsSkippedSinceNoneIsLinked) {
  EXPECT_THAT(OutputOf("AsksForRpc", 0), AllOf(HasSubstr("[  SKIPPED ] 1 test"),
                                               HasSubstr("no RPC is linked")));
}

TEST_F(HarnessTest, RpcThatTheTargetHasMustBeThere) {
  further_variables_ = {"SHERD_TEST_RPC=1"};
  EXPECT_THAT(Failure("AsksForRpc"),
              AllOf(HasSubstr("[  FAILED  ] 1 test"),
                    HasSubstr("the target has rpc = True, and no RPC is")));
}

TEST_F(HarnessTest, ImpossibleWorldSizesAreRefused) {
  const std::string output = Failure("IsRefused");
  for (const char* size : {"0", "-3", "1000"}) {
    EXPECT_THAT(output, HasSubstr(absl::StrCat("world size ", size,
                                               ", expected 1 to 256")));
  }
}

// True once `pid`, a descendant of this process, has ended. Reaps it.
bool AwaitOrphansEnd(pid_t pid) {
  const Deadline deadline = Deadline::After(kPatience);
  while (!deadline.HasPassed()) {
    const pid_t reaped = waitpid(pid, nullptr, WNOHANG);
    if (reaped == pid) return true;
    // Not (yet) ours: its parent still has it, or has reaped it.
    if (reaped < 0 && kill(pid, 0) != 0 && errno == ESRCH) return true;
    poll(nullptr, 0, 5);
  }
  return false;
}

// Kills the parent process of a test whose ranks and their children wait, and
// expects the end of them all.
void HarnessTest::ExpectNoOrphans() {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  BrokenRun run("WaitsForever", directory_, launcher_);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < 3; ++rank) {
    for (const char* what : {"rank_", "child_", "daemon_"}) {
      processes.push_back(AwaitPid(absl::StrCat(what, rank)));
      ASSERT_GT(processes.back(), 0);
      EXPECT_EQ(kill(processes.back(), 0), 0) << "it runs";
    }
  }
  run.process().Signal(SIGKILL);
  EXPECT_TRUE(run.process().Wait().KilledBy(SIGKILL));
  for (pid_t process : processes) EXPECT_TRUE(AwaitOrphansEnd(process));
  EXPECT_TRUE(AwaitTidy()) << "directories of tests stay behind";
}

TEST_F(HarnessTest, NothingOutlivesTheParent) { ExpectNoOrphans(); }

// The same with ranks that mpirun starts.
class LauncherTest : public HarnessTest {
 protected:
  void SetUp() override {
    HarnessTest::SetUp();
    launcher_ = "mpirun";
    if (const auto path = FindLauncher(launcher_); !path.ok()) {
      GTEST_SKIP() << path.status().message();
    }
  }
};

TEST_F(LauncherTest, ATestThatPassesPassesAndIsQuiet) {
  EXPECT_THAT(OutputOf("Passes", 0),
              AllOf(HasSubstr("[  PASSED  ] 1 test."), Not(HasSubstr("[rank")),
                    Not(HasSubstr("[launcher]"))));
}

class BrokenLaunchedTests : public LauncherTest,
                            public ::testing::WithParamInterface<Broken> {};

TEST_P(BrokenLaunchedTests, FailWithAReportOfTheReason) {
  ExpectReport(Failure(GetParam().test), GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    UnderMpirun, BrokenLaunchedTests,
    ::testing::Values(
        Broken{"CrashesInTheBody",
               {"root cause: rank 1 was killed by signal 11 (Segmentation "
                "fault) in phase body",
                // Whether the launcher or the harness ends the others is a
                // race.
                "[rank 1] [crash] signal 11"}},
        Broken{"ExitsBeforeTheEnd",
               {"root cause: rank 2 exited with code 0 before the end, in "
                "phase body",
                "rank 0 passed"}},
        Broken{"ExitsWithTheCodeOfASkip",
               {"exited with code 81 before the end"}},
        Broken{"ClosesItsResultPipe",
               {"root cause: rank 0 result pipe: DATA_LOSS: closed before the "
                "end"}},
        Broken{"OneRankSkips",
               {"1 of 3 ranks skipped, expected all or none",
                "rank 0 was stopped by the harness in phase body",
                "rank 1 skipped: no room"}},
        Broken{"HangsInTheBody",
               {TimedOut(),
                absl::StrCat("did not end within ", kHangSeconds,
                             "s; in phase body"),
                "[rank 2] [stacks of all threads]", "WaitForever"},
               /*times_out=*/true},
        Broken{"HangsAtExit",
               {TimedOut(), "root cause: rank 0 did not end", "after the test",
                "rank 2 passed"},
               /*times_out=*/true},
        Broken{
            "IsStopped",
            {TimedOut(), "root cause: rank 2 stood still, stopped by a signal",
             "[rank 2] [stacks of all threads]"},
            /*times_out=*/true},
        Broken{"IgnoresSigterm",
               {"[ranks 1, 2] Failed\nso that rank 0 is stopped",
                "rank 0 was stopped by the harness in phase body"}},
        Broken{"FailsInAThread",
               {"root cause: rank 2 failed at testing/harness/broken_tests.cc:",
                "in a thread", "rank 0 passed"}},
        Broken{"OneRankFailsWhileTheOthersWait",
               {"root cause: rank 1 failed", "[rank 1] ", "the root cause",
                "rank 1: left the group"}},
        Broken{"FloodsItsOutput",
               {"[rank 1] 0 xxx", "bytes left out", "[rank 1] last line",
                "[rank 2] last line"}}),
    [](const auto& info) { return std::string(info.param.test); });

TEST_F(LauncherTest, ATestThatAllRanksSkipIsSkippedWithItsReason) {
  EXPECT_THAT(OutputOf("AllRanksSkip", 0),
              HasSubstr("Skipped due to small world size. on purpose"));
}

TEST_F(LauncherTest, WithoutTheLauncherTestsAreSkippedWithTheReason) {
  launcher_ = "no_such_mpirun";
  EXPECT_THAT(OutputOf("Passes", 0),
              AllOf(HasSubstr("[  SKIPPED ] 1 test"),
                    HasSubstr("no_such_mpirun is not installed")));
}

TEST_F(LauncherTest, ALauncherThatStartsNothingIsReported) {
  launcher_ = "/bin/false";
  EXPECT_THAT(Failure("Passes"),
              HasSubstr("the ranks could not be started: INTERNAL: /bin/false "
                        "exited with code 1"));
}

TEST_F(LauncherTest, NothingOutlivesTheParent) { ExpectNoOrphans(); }

// Processes that ranks leave behind are killed, and the run does not wait for
// them.
void HarnessTest::ExpectLeftoversDie(const std::string& test) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  OutputOf(test, 0);
  for (int rank = 0; rank < 3; ++rank) {
    const pid_t left = AwaitPid(absl::StrCat("left_", rank));
    ASSERT_GT(left, 0);
    EXPECT_TRUE(AwaitOrphansEnd(left));
  }
}

TEST_F(HarnessTest, ProcessesThatRanksLeaveBehindDieWithThem) {
  ExpectLeftoversDie("LeavesAProcessBehind");
}

TEST_F(HarnessTest, DaemonsOfRanksThatHoldTheirPipesDieWithThem) {
  ExpectLeftoversDie("LeavesADaemonBehind");
}

TEST_F(HarnessTest, ADaemonThatWritesForEverDoesNotKeepTheRunFromEnding) {
  ExpectLeftoversDie("LeavesAFloodBehind");
}

TEST_F(LauncherTest, ProcessesThatRanksLeaveBehindDieWithThem) {
  ExpectLeftoversDie("LeavesADaemonBehind");
}

// The part of `output` from the start of that test to its end.
std::string ReportOf(const std::string& output, const std::string& test) {
  const size_t begin = output.find("[ RUN      ] " + test + "\n");
  const size_t end = output.find("] " + test + " (", begin);
  if (begin == std::string::npos || end == std::string::npos) return "";
  return output.substr(begin, end - begin);
}

TEST_F(HarnessTest, AfterATestThatBreaksRanksOthersGetNewOnes) {
  const std::string output = Failure("BrokenSuiteTest.*");
  EXPECT_THAT(output, AllOf(HasSubstr("[  PASSED  ] 6 tests."),
                            HasSubstr("[  SKIPPED ] 1 test,"),
                            HasSubstr(" 5 FAILED TESTS")));
  const auto report = [&output](const std::string& test) {
    return ReportOf(output, "BrokenSuiteTest." + test);
  };
  for (const char* test :
       {"IsFine", "PassesAfterACrash", "PassesAfterAHang", "PassesAfterASkip",
        "PassesAfterAFailure", "PassesAfterAnExit"}) {
    EXPECT_THAT(report(test), ::testing::EndsWith("[       OK ")) << test;
  }
  EXPECT_THAT(report("Crashes"),
              AllOf(HasSubstr("root cause: rank 1 was killed by signal 11 "
                              "(Segmentation fault) in phase body"),
                    HasSubstr("[rank 0] [stacks of all threads]"),
                    Not(HasSubstr("timed out after"))));
  EXPECT_THAT(
      report("Hangs"),
      AllOf(HasSubstr(TimedOut() + "; root cause: rank 2 kept "
                                   "others waiting (see the flight recorder)"),
            HasSubstr("[rank 2] [stacks of all threads]"),
            HasSubstr("flight recorder: group \"default\": rank 2 has "
                      "not come to barrier #")));
  EXPECT_THAT(report("AllSkip"), HasSubstr("Test skipped for ROCm on purpose"));
  EXPECT_THAT(report("OneSkips"),
              AllOf(HasSubstr("1 of 3 ranks skipped, expected all or none"),
                    HasSubstr("rank 1 skipped: no room")));
  EXPECT_THAT(report("Fails"), AllOf(HasSubstr("root cause: rank 1 failed"),
                                     HasSubstr("the root cause"),
                                     HasSubstr("rank 1: left the group")));
  EXPECT_THAT(report("Exits"),
              HasSubstr("root cause: rank 0 exited with code 0 before the "
                        "end, in phase body"));
}

TEST_F(HarnessTest, AtTheEndOfASuiteItsRanksAreJudgedOnceMore) {
  EXPECT_THAT(Failure("FailingSuiteEndTest.*"),
              AllOf(HasSubstr("[       OK ] FailingSuiteEndTest.IsFineToo"),
                    HasSubstr("do not end as they should; root cause: rank 2 "
                              "failed at testing/harness/broken_tests.cc:"),
                    HasSubstr("[rank 2] Failed\nat the end of the suite")));
  EXPECT_THAT(Failure("CrashingSuiteEndTest.*"),
              AllOf(HasSubstr("[       OK ] CrashingSuiteEndTest.IsFine"),
                    HasSubstr("do not end as they should; root cause: rank 2 "
                              "was killed by signal 11"),
                    HasSubstr("[rank 2] [crash] signal 11")));
}

TEST_F(HarnessTest, ManyRunsAtOnceDoNotDisturbEachOther) {
  constexpr int kRuns = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < kRuns; ++i) {
    threads.emplace_back([this, i] {
      BrokenRun run(i % 3 == 0 ? "AllRanksFailAlike" : "Passes", directory_);
      EXPECT_TRUE(run.Finish());
      EXPECT_TRUE(run.process().Poll()->ExitedWith(i % 3 == 0 ? 1 : 0))
          << run.output();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(FileSystem::Posix().List(directory_), IsOkAndHolds(IsTidy()));
}

}  // namespace
}  // namespace sherd::testing::internal
