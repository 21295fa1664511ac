#include "sherd/tools/sherd/run/run_outcome.h"

#include <signal.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/process/exit_status.h"

namespace sherd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

RankEnd Exited(int code) { return {ExitStatus::OfCode(code)}; }
RankEnd Killed(int signal, bool by_launcher = false) {
  return {ExitStatus::OfSignal(signal), by_launcher};
}

RunEnd Ended(std::vector<RankEnd> ranks, int first_failure) {
  RunEnd end;
  end.ranks = std::move(ranks);
  end.first_failure = first_failure;
  end.failed_after = absl::Seconds(3);
  end.flight_directory = "D";
  return end;
}

void Name(RunEnd& end, int rank, std::vector<int> by) {
  end.flight.ranks = by;
  end.flight.failed.push_back({rank, std::move(by)});
}

TEST(RunOutcomeTest, WithoutDumpsTheFirstRankThatFailedIsNamed) {
  const RunOutcome outcome =
      JudgeRun(Ended({Exited(1), Killed(SIGTERM, true), Exited(7)}, 2));
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_THAT(outcome.failed, ElementsAre(2));
  EXPECT_EQ(outcome.summary,
            "rank 2 of 3 failed first: exit code 7 after 3.0 s; rank 0: exit "
            "code 1; rank 1: killed by signal 15 (Terminated)");
}

// As after an error that all ranks have, and none is the cause of.
TEST(RunOutcomeTest, NoRankIsNamedIfAllEndedAlike) {
  RunEnd end = Ended({Exited(1), Exited(1), Exited(1)}, 2);
  RunOutcome outcome = JudgeRun(end);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(
      outcome.summary,
      "all 3 ranks failed: exit code 1; the first was rank 2 after 3.0 s");
  Name(end, 1, {0, 2});
  outcome = JudgeRun(end);
  EXPECT_THAT(outcome.failed, ElementsAre(1));
  EXPECT_THAT(outcome.summary, HasSubstr("rank 1 of 3 failed, as ranks 0, 2"));
}

TEST(RunOutcomeTest, TheRankThatTheOthersNameWinsOverTheFirstToExit) {
  RunEnd end = Ended({Exited(1), Exited(5), Exited(1)}, 0);
  Name(end, 1, {0, 2});
  const RunOutcome outcome = JudgeRun(end);
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_THAT(outcome.failed, ElementsAre(1));
  EXPECT_EQ(
      outcome.summary,
      "rank 1 of 3 failed, as ranks 0, 2 report: exit code 5; ranks 0, 2: "
      "exit code 1; inspect with: sherd flight D");
}

TEST(RunOutcomeTest, ARankThatTheLauncherEndedGivesNoExitCode) {
  RunEnd end = Ended({Exited(3), Killed(SIGKILL, true)}, 0);
  Name(end, 1, {0});
  const RunOutcome outcome = JudgeRun(end);
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(
      outcome.summary,
      HasSubstr("rank 1 of 2 failed, as rank 0 reports: killed by signal "
                "9 (Killed) by sherd run"));
}

TEST(RunOutcomeTest, AFindingIsReportedWhereNoRankIsNamed) {
  RunEnd end = Ended({Exited(1), Exited(1)}, 1);
  end.flight.ranks = {0, 1};
  end.flight.groups.resize(1);
  end.flight.groups[0].findings.push_back({.kind = FlightFindingKind::kMismatch,
                                           .ranks = {0, 1},
                                           .text = "as call #1, they differ"});
  EXPECT_THAT(JudgeRun(end).summary,
              HasSubstr("; as call #1, they differ; inspect with"));
  // It has texts of the dumps, which may be anybody's.
  end.flight.groups[0].findings[0].text = "two\nlines\x1b";
  EXPECT_THAT(JudgeRun(end).summary,
              HasSubstr("; two\\nlines\\x1b; inspect with"));
}

TEST(RunOutcomeTest, ContinuingSucceedsIfAllRemainingRanksSucceed) {
  struct Case {
    std::vector<RankEnd> ranks;
    int first;
    std::vector<int> named;
    int exit_code;
  };
  const std::vector<Case> cases = {
      {{Exited(0), Killed(SIGKILL), Exited(0)}, 1, {}, 0},
      // Two that died.
      {{Exited(0), Killed(SIGKILL), Killed(SIGSEGV)}, 1, {}, 0},
      // Its error is known to the others.
      {{Exited(0), Exited(4), Exited(0)}, 1, {1}, 0},
      // No rank is named.
      {{Exited(0), Exited(4), Exited(0)}, 1, {}, 0},
      // One of those that were left failed in its turn.
      {{Exited(0), Killed(SIGKILL), Exited(4)}, 1, {1}, 137},
      // No rank is left.
      {{Killed(SIGKILL), Killed(SIGKILL)}, 1, {}, 137},
      // One that was stopped, and named.
      {{Exited(0), Exited(0), Killed(SIGTERM, true)}, 2, {2}, 0},
  };
  for (const Case& c : cases) {
    RunEnd end = Ended(c.ranks, c.first);
    end.goes_on = true;
    for (const int rank : c.named) Name(end, rank, {0});
    const RunOutcome outcome = JudgeRun(end);
    EXPECT_EQ(outcome.exit_code, c.exit_code) << outcome.summary;
    EXPECT_THAT(outcome.summary, HasSubstr("failed"));
  }
}

TEST(RunOutcomeTest, ATimeoutNamesTheRankThatTheDumpsName) {
  RunEnd end = Ended({Killed(SIGTERM, true), Killed(SIGTERM, true)}, 0);
  end.first_failure.reset();
  end.timeout = absl::Seconds(2);
  end.late_ranks = {0, 1};
  EXPECT_EQ(JudgeRun(end).exit_code, 124);
  EXPECT_THAT(JudgeRun(end).summary, Not(HasSubstr("inspect")));
  Name(end, 1, {0});
  EXPECT_EQ(JudgeRun(end).summary,
            "timeout: ranks 0, 1 of 2 had not ended after 2s; rank 1 of 2 "
            "failed, as rank 0 reports; ranks 0, 1: killed by signal 15 "
            "(Terminated); inspect with: sherd flight D");
}

}  // namespace
}  // namespace sherd
