#include "sherd/testing/harness/run_outcome.h"

#include <signal.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/process/exit_status.h"

namespace sherd::testing::internal {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Kind = Verdict::Kind;
using Type = ResultFrame::Type;

// The status words of waitpid().

absl::Duration At(int seconds) { return absl::Seconds(seconds); }

RankOutcome Passed() {
  RankOutcome rank;
  rank.phase = "exit";
  rank.done = ResultFrame{.type = Type::kDone, .number = 1, .second = 0};
  rank.exit = ExitStatus::OfCode(0);
  rank.ended = At(5);
  return rank;
}

RankOutcome Failed(int when, const std::string& text) {
  RankOutcome rank = Passed();
  rank.failures = {
      {At(when),
       {.type = Type::kFailure, .number = 7, .file = "a.cc", .text = text}}};
  rank.done->second = 1;
  rank.exit = ExitStatus::OfCode(10);
  return rank;
}

RankOutcome Skipped(int code, const std::string& text) {
  RankOutcome rank = Passed();
  rank.skip = ResultFrame{.type = Type::kSkip, .number = code, .text = text};
  rank.exit = ExitStatus::OfCode(code);
  return rank;
}

RankOutcome Crashed(int signal) {
  RankOutcome rank;
  rank.phase = "body";
  rank.exit = ExitStatus::OfSignal(signal);
  rank.ended = At(9);
  return rank;
}

RankOutcome Stopped() {
  RankOutcome rank = Crashed(SIGTERM);
  rank.stopped = true;
  return rank;
}

Verdict JudgeRanks(std::vector<RankOutcome> ranks) {
  RunOutcome run;
  run.ranks = std::move(ranks);
  return Judge(run);
}

TEST(RunOutcomeTest, AllRanksInOrderIsPassed) {
  const Verdict verdict = JudgeRanks({Passed(), Passed()});
  EXPECT_EQ(verdict.kind, Kind::kPassed);
  EXPECT_THAT(verdict.failures, IsEmpty());
}

TEST(RunOutcomeTest, TheRootCauseIsChosenByKindThenByTime) {
  struct Case {
    const char* what;
    std::vector<RankOutcome> ranks;
    const char* root;
  };
  const std::string lost = "x is UNAVAILABLE: rank 2: died";
  const std::string late = "which is DEADLINE_EXCEEDED: rank 1 did not come";
  const std::string dead =
      "which is FAILED_PRECONDITION: the group is not "
      "usable any more: …";
  const Case cases[] = {
      {"crash before failure",
       {Failed(1, "a"), Crashed(SIGSEGV)},
       "root cause: rank 1 was killed by signal 11"},
      {"failure before lost peer",
       {Failed(1, lost), Failed(3, "b")},
       "root cause: rank 1 failed at a.cc:7: b"},
      {"failure before poisoned group",
       {Failed(1, dead), Failed(3, "b")},
       "root cause: rank 1 failed at a.cc:7: b"},
      {"lost peer before timeout",
       {Failed(1, late), Failed(3, lost)},
       "root cause: rank 1 failed at a.cc:7: x is UNAVAILABLE: rank 2"},
      {"the earlier failure",
       {Failed(3, "a"), Failed(2, "b")},
       "root cause: rank 1 failed at a.cc:7: b"},
      {"an expected end is not a consequence",
       {Failed(3, lost), Failed(4, "Expected: has code UNAVAILABLE")},
       "root cause: rank 1"},
      {"wrong exit before lost peer",
       {Failed(1, lost),
        [] {
          RankOutcome rank = Crashed(0);
          rank.exit = ExitStatus::OfCode(3);
          return rank;
        }()},
       "root cause: rank 1 exited with code 3 before the end, in phase body"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    const Verdict verdict = JudgeRanks(c.ranks);
    EXPECT_EQ(verdict.kind, Kind::kFailed);
    EXPECT_THAT(verdict.text, StartsWith(c.root));
    EXPECT_THAT(verdict.failures, SizeIs(2));
  }
}

TEST(RunOutcomeTest, TheSameFailureOfSeveralRanksIsOne) {
  const Verdict verdict =
      JudgeRanks({Failed(1, "a"), Passed(), Failed(2, "a"), Failed(3, "b")});
  ASSERT_THAT(verdict.failures, SizeIs(2));
  EXPECT_EQ(verdict.failures[0].text, "[ranks 0, 2] a");
  EXPECT_EQ(verdict.failures[0].file, "a.cc");
  EXPECT_EQ(verdict.failures[0].line, 7);
  EXPECT_EQ(verdict.failures[1].text, "[rank 3] b");
  EXPECT_THAT(verdict.text, AllOf(HasSubstr("\n  rank 0 failed"),
                                  HasSubstr("\n  rank 1 passed")));
}

TEST(RunOutcomeTest, ABarrierThatFailsBecauseAnotherRankDidIsLeftOut) {
  const RankOutcome alone =
      Failed(2, absl::StrCat(kFinalBarrier, ": UNAVAILABLE: rank 1: left"));
  const Verdict verdict = JudgeRanks({alone, Failed(1, "a")});
  EXPECT_THAT(verdict.failures, SizeIs(1));
  EXPECT_THAT(verdict.text, AllOf(StartsWith("root cause: rank 1 failed"),
                                  HasSubstr("rank 0 was left alone")));
  EXPECT_THAT(JudgeRanks({alone, Skipped(86, "x")}).text,
              StartsWith("1 of 2 ranks skipped"));
  // Not known why: then it counts.
  EXPECT_THAT(JudgeRanks({alone, Passed()}).text,
              StartsWith("root cause: rank 0 failed"));
  // A barrier that takes too long does not repeat another rank's failure.
  const RankOutcome late = Failed(
      2, absl::StrCat(kFinalBarrier, ": DEADLINE_EXCEEDED: rank 1 is late"));
  EXPECT_THAT(JudgeRanks({late, Failed(3, "a")}).failures, SizeIs(2));
}

TEST(RunOutcomeTest, UnanimousSkipsSkip) {
  const Verdict verdict =
      JudgeRanks({Skipped(74, "no GPU here"), Skipped(74, "nor here")});
  EXPECT_EQ(verdict.kind, Kind::kSkipped);
  EXPECT_EQ(verdict.text, "no GPU here");
}

TEST(RunOutcomeTest, OtherSkipsFailAndListTheRanksThatSkipped) {
  const Verdict mixed = JudgeRanks({Passed(), Skipped(74, "no GPU")});
  EXPECT_EQ(mixed.kind, Kind::kFailed);
  EXPECT_THAT(mixed.text, AllOf(HasSubstr("1 of 2 ranks skipped"),
                                HasSubstr("rank 0 passed"),
                                HasSubstr("rank 1 skipped: no GPU")));
  const Verdict different = JudgeRanks({Skipped(74, "x"), Skipped(86, "y")});
  EXPECT_EQ(different.kind, Kind::kFailed);
  EXPECT_THAT(different.text, HasSubstr("for different reasons"));
  const Verdict stopped = JudgeRanks({Skipped(86, "x"), Stopped()});
  EXPECT_EQ(stopped.kind, Kind::kFailed);
  EXPECT_THAT(stopped.text, HasSubstr("rank 1 was stopped by the harness"));
}

TEST(RunOutcomeTest, AFailureOutranksSkips) {
  const Verdict verdict = JudgeRanks({Skipped(86, "x"), Failed(1, "a")});
  EXPECT_EQ(verdict.kind, Kind::kFailed);
  EXPECT_THAT(verdict.text, StartsWith("root cause: rank 1 failed"));
}

TEST(RunOutcomeTest, OnlyACleanEndPasses) {
  std::vector<std::pair<const char*, RankOutcome>> ends;
  ends.push_back({"exited with code 0 before the end", Passed()});
  ends.back().second.done.reset();
  ends.push_back({"exited with code 3 after the test", Passed()});
  ends.back().second.exit = ExitStatus::OfCode(3);
  ends.push_back({"exited with code 86 after the test", Passed()});
  ends.back().second.exit = ExitStatus::OfCode(86);
  ends.push_back({"exited with code 10 after the test", Failed(1, "a")});
  ends.back().second.failures.clear();
  ends.push_back({"ran 0 tests, expected 1", Passed()});
  ends.back().second.done->number = 0;
  ends.push_back({"result pipe: DATA_LOSS: bad", Passed()});
  ends.back().second.pipe = absl::DataLossError("bad");
  ends.push_back({"signal 6", Passed()});
  ends.back().second.exit = ExitStatus::OfSignal(SIGABRT);
  ends.push_back({"was stopped by the harness", Passed()});
  ends.back().second.stopped = true;
  ends.back().second.exit = ExitStatus::OfSignal(SIGTERM);
  ends.push_back({"was not started", Passed()});
  ends.back().second.exit.reset();
  for (const auto& [text, end] : ends) {
    const Verdict verdict = JudgeRanks({Passed(), end});
    EXPECT_EQ(verdict.kind, Kind::kFailed) << text;
    EXPECT_THAT(verdict.text, HasSubstr(text));
  }
}

TEST(RunOutcomeTest, AnAnnouncedDeathPassesAndItsAbsenceFails) {
  RunOutcome run;
  run.expected_deaths = {{1, SIGKILL}};
  run.ranks = {Passed(), Crashed(SIGKILL)};
  EXPECT_EQ(Judge(run).kind, Kind::kPassed);
  EXPECT_FALSE(EndedAbnormally(run, 1));
  run.ranks[1] = Crashed(SIGSEGV);
  EXPECT_THAT(Judge(run).text, HasSubstr("expected to be killed by signal 9"));
  EXPECT_TRUE(EndedAbnormally(run, 1));
  run.ranks[1] = Passed();
  EXPECT_THAT(Judge(run).text, HasSubstr("but exited with code 0"));
}

TEST(RunOutcomeTest, RanksThatTheLauncherEndedAreNotTheCause) {
  RunOutcome run;
  RankOutcome ended = Crashed(SIGTERM);
  ended.ended = At(1);
  ended.ended_by_launcher = true;
  run.ranks = {ended, Crashed(SIGSEGV)};
  EXPECT_THAT(Judge(run).text,
              AllOf(StartsWith("root cause: rank 1 was killed by signal 11"),
                    HasSubstr("rank 0 was ended by the launcher")));
  run.ranks = {ended, Failed(3, "Expected: x")};
  EXPECT_THAT(Judge(run).text, StartsWith("root cause: rank 1 failed at a.cc"));
  // No rank is left to pass.
  run.ranks = {ended, ended};
  EXPECT_EQ(Judge(run).kind, Kind::kFailed);
  run.expected_deaths = {{0, SIGTERM}, {1, SIGKILL}};
  run.ranks = {ended, Crashed(SIGKILL)};
  EXPECT_EQ(Judge(run).kind, Kind::kPassed);
}

TEST(RunOutcomeTest, ATimeoutNamesTheRanksThatDidNotEndAndWhere) {
  RunOutcome run;
  run.timed_out = true;
  run.timeout = absl::Seconds(3);
  run.ranks = {Passed(), Stopped()};
  const Verdict verdict = Judge(run);
  EXPECT_EQ(verdict.kind, Kind::kFailed);
  EXPECT_THAT(verdict.text,
              StartsWith("timed out after 3s; root cause: rank 1 did not end "
                         "within 3s; in phase body"));
}

TEST(RunOutcomeTest, RanksThatCannotBeStartedFail) {
  RunOutcome run;
  run.start = absl::ResourceExhaustedError("no processes left");
  run.ranks.resize(2);
  const Verdict verdict = Judge(run);
  EXPECT_EQ(verdict.kind, Kind::kFailed);
  EXPECT_THAT(verdict.text, HasSubstr("no processes left"));
}

TEST(RunOutcomeTest, EachLineOfOutputGetsTheRank) {
  EXPECT_EQ(PrefixLines(3, ""), "");
  EXPECT_EQ(PrefixLines(3, "a\n\nb"), "[rank 3] a\n[rank 3] \n[rank 3] b\n");
  EXPECT_EQ(PrefixLines(0, "a\n"), "[rank 0] a\n");
}

TEST(RunOutcomeTest, OfATimeoutTheRankThatOthersWaitForIsTheRootCause) {
  RunOutcome run;
  run.ranks = {Stopped(), Failed(1, "is DEADLINE_EXCEEDED: late"), Stopped()};
  run.flight.emplace();
  run.flight->findings = {"rank 2 has not come"};
  run.flight->named = {2};
  for (const bool timed_out : {false, true}) {
    run.timed_out = timed_out;
    EXPECT_THAT(Judge(run).text,
                AllOf(HasSubstr("root cause: rank 2 kept others waiting"),
                      HasSubstr("\nflight recorder: rank 2 has not come")));
  }
  // Every other failure outranks it.
  run.ranks[1] = Failed(8, "b");
  EXPECT_THAT(Judge(run).text, HasSubstr("root cause: rank 1 failed"));
}

TEST(RunOutcomeTest, AStoppedRankIsTheRootCauseOfOthersTimeouts) {
  RunOutcome run;
  run.ranks = {Failed(1, "is UNAVAILABLE: rank 1"), Stopped(), Stopped()};
  run.ranks[1].suspended_in = "SetUp";
  run.timed_out = true;
  const Verdict verdict = Judge(run);
  EXPECT_THAT(verdict.text,
              AllOf(HasSubstr("root cause: rank 1 stood still, stopped by a "
                              "signal (SIGSTOP?), in phase SetUp"),
                    HasSubstr("rank 2 was stopped by the harness")));
  // Even if it went on and passed.
  run.ranks = {Passed(), Passed()};
  run.ranks[1].suspended_in = "body";
  EXPECT_EQ(Judge(run).kind, Kind::kFailed);
}

TEST(RunOutcomeTest, ARankThatVanishedHasCrashed) {
  RankOutcome vanished;
  vanished.vanished = "has ended: its process 123 does not exist";
  const Verdict verdict = JudgeRanks({Failed(1, "a"), vanished, Passed()});
  EXPECT_THAT(verdict.text,
              HasSubstr("root cause: rank 1 has ended: its process 123"));
  EXPECT_THAT(verdict.failures[0].text,
              "[rank 1] has ended: its process 123 does "
              "not exist");
}

TEST(RunOutcomeTest, ACrashNamesTheFunction) {
  RankOutcome crashed = Crashed(SIGABRT);
  crashed.output =
      "text\n[crash] signal 6 (Aborted)\n  thread 7 (rank 0)\n"
      "    0x7f12  ?\n    0x7f13  gsignal\n    0x7f14  abort\n"
      "    0x55aa  my::Function()\n    0x55ab  main\n";
  EXPECT_THAT(JudgeRanks({crashed}).text,
              HasSubstr("was killed by signal 6 (Aborted) in phase body, in "
                        "my::Function()\n"));
}

TEST(RunOutcomeTest, RanksAreJoinedToRanges) {
  const Verdict verdict =
      JudgeRanks({Failed(1, "a"), Passed(), Failed(1, "a"), Failed(2, "a")});
  ASSERT_THAT(verdict.failures, SizeIs(1));
  EXPECT_EQ(verdict.failures[0].text, "[ranks 0, 2, 3] a");
  EXPECT_EQ(JudgeRanks({Failed(1, "a"), Failed(1, "a"), Failed(2, "a"),
                        Passed(), Failed(2, "a")})
                .failures[0]
                .text,
            "[ranks 0-2, 4] a");
}

TEST(RunOutcomeTest, KeptFilesAreFoundWhenTheSandboxIsRemoved) {
  RunOutcome run;
  run.ranks = {Failed(1, "x")};
  run.kept_in = "/kept/A.B";
  EXPECT_THAT(Judge(run).text, EndsWith("dumps: /kept/A.B"));
  run.kept_in = "/cache/sandbox/7/x/testlogs/a_test/test.outputs/A.B";
  EXPECT_THAT(Judge(run).text,
              EndsWith("dumps: bazel-testlogs/a_test/test.outputs/A.B, packed "
                       "into outputs.zip by Bazel"));
}

TEST(RunOutcomeTest, TheTimeoutIsRounded) {
  RunOutcome run;
  run.ranks = {Stopped()};
  run.timed_out = true;
  run.timeout = absl::Seconds(2) - absl::Microseconds(7);
  EXPECT_THAT(Judge(run).text, AllOf(HasSubstr("timed out after 2s; "),
                                     HasSubstr("did not end within 2s;")));
}

TEST(RunOutcomeTest, AllTextsArePrintable) {
  RankOutcome failed = Failed(1, "red \x1b[31m\xff");
  failed.failures[0].frame.file = "a\x01.cc";
  const Verdict verdict = JudgeRanks({failed});
  EXPECT_THAT(verdict.text, HasSubstr("a\\x01.cc:7: red \\xff"));
  EXPECT_EQ(verdict.failures[0].text, "[rank 0] red \\xff");
  EXPECT_EQ(verdict.failures[0].file, "a\\x01.cc");
  EXPECT_EQ(PrefixLines(3, "a\nb\x02\n"), "[rank 3] a\n[rank 3] b\\x02\n");
}

}  // namespace
}  // namespace sherd::testing::internal
