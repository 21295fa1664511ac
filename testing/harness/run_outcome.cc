#include "sherd/testing/harness/run_outcome.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/units.h"
#include "sherd/testing/harness/stack_dump.h"

namespace sherd::testing::internal {
namespace {

// From the likely cause to the likely consequence.
enum class Weight { kCrash, kFailure, kSuspended, kPeerLost, kTimeout };

struct Event {
  Weight weight;
  absl::Duration when;
  int rank;
  Verdict::Failure failure;
};

// A failed expectation which only reports that another rank has failed, or did
// not arrive, is a consequence. Statuses are printed as "CODE: message";
// descriptions of expectations have no colon there.
Weight WeightOf(absl::string_view failure_text) {
  if (absl::StrContains(failure_text, "DEADLINE_EXCEEDED: ")) {
    return Weight::kTimeout;
  }
  if (absl::StrContains(failure_text, "UNAVAILABLE: ") ||
      absl::StrContains(failure_text, "the group is not usable any more")) {
    return Weight::kPeerLost;
  }
  return Weight::kFailure;
}

// Reports only that another rank left the test early.
bool IsEcho(absl::string_view failure_text) {
  return absl::StrContains(failure_text, kFinalBarrier) &&
         WeightOf(failure_text) == Weight::kPeerLost;
}

// A launcher ends ranks by SIGTERM.
bool DiedAsExpected(const RunOutcome& run, int rank) {
  const auto expected = run.expected_deaths.find(rank);
  return expected != run.expected_deaths.end() && run.ranks[rank].exit &&
         run.ranks[rank].exit->KilledBy(expected->second);
}

bool FailedInOrder(const RankOutcome& rank) {
  return rank.done && rank.done->second != 0 && !rank.failures.empty() &&
         rank.exit && !rank.exit->signal();
}

bool SkippedInOrder(const RankOutcome& rank) {
  return rank.skip && rank.done && rank.exit &&
         rank.exit->ExitedWith(rank.skip->number);
}

std::string Suspension(const RankOutcome& rank) {
  return absl::StrCat("stood still, stopped by a signal (SIGSTOP?), in phase ",
                      *rank.suspended_in);
}

std::string HowItEnded(const RunOutcome& run, int r) {
  const RankOutcome& rank = run.ranks[r];
  const std::string in_phase = absl::StrCat(" in phase ", rank.phase);
  if (!rank.vanished.empty()) return rank.vanished;
  if (!rank.exit) return "was not started";
  if (DiedAsExpected(run, r)) {
    return absl::StrCat(rank.exit->ToString(), ", as expected");
  }
  if (rank.suspended_in) return Suspension(rank);
  if (rank.stopped) {
    return absl::StrCat("was stopped by the harness", in_phase);
  }
  if (rank.ended_by_launcher) {
    return absl::StrCat("was ended by the launcher", in_phase);
  }
  if (SkippedInOrder(rank)) return absl::StrCat("skipped: ", rank.skip->text);
  if (FailedInOrder(rank)) {
    return std::all_of(
               rank.failures.begin(), rank.failures.end(),
               [](const TimedFrame& timed) { return IsEcho(timed.frame.text); })
               ? "was left alone at the end"
               : "failed";
  }
  if (!EndedAbnormally(run, r)) return "passed";
  return absl::StrCat(rank.exit->ToString(), in_phase);
}

std::string CutPhase(const RankOutcome& rank) {
  return rank.phase == "exit" ? " after the test"
                              : absl::StrCat(" in phase ", rank.phase);
}

// Functions on a stack that do not show the cause of a crash.
bool IsMachinery(absl::string_view function) {
  for (absl::string_view name : {"?", "raise", "gsignal", "abort", "pthread_",
                                 "__", "std::terminate", "std::rethrow"}) {
    if (absl::StartsWith(function, name)) return true;
  }
  return false;
}

// ", in FUNCTION", if the stack in the rank's output shows it.
std::string CrashSite(absl::string_view output) {
  const size_t crash = output.rfind(kCrashBegin);
  if (crash == absl::string_view::npos) return "";
  for (absl::string_view line : absl::StrSplit(output.substr(crash), '\n')) {
    if (!absl::ConsumePrefix(&line, "    0x")) continue;
    const size_t space = line.find("  ");
    if (space == absl::string_view::npos) continue;
    line = absl::StripAsciiWhitespace(line.substr(space));
    if (!IsMachinery(line)) return absl::StrCat(", in ", line);
  }
  return "";
}

// Describes what is wrong about the rank's end, beside failures that it
// reported itself; empty if nothing.
std::string WrongEnd(const RunOutcome& run, int r) {
  const RankOutcome& rank = run.ranks[r];
  if (!rank.vanished.empty()) return rank.vanished;
  if (!rank.exit || DiedAsExpected(run, r)) return "";
  if (const auto expected = run.expected_deaths.find(r);
      expected != run.expected_deaths.end()) {
    return absl::StrCat("was expected to be killed by signal ",
                        expected->second, ", but ",
                        rank.stopped ? "did not die" : rank.exit->ToString());
  }
  if (rank.ended_by_launcher) {
    return absl::StrCat("was ended by the launcher", CutPhase(rank));
  }
  if (!rank.stopped && rank.exit->signal()) {
    return absl::StrCat(rank.exit->ToString(), CutPhase(rank),
                        CrashSite(rank.output));
  }
  if (!rank.pipe.ok()) {
    return absl::StrCat("result pipe: ", rank.pipe.ToString());
  }
  if (rank.stopped) return "";
  if (!rank.done) {
    return absl::StrCat(rank.exit->ToString(), " before the end,",
                        CutPhase(rank));
  }
  if (rank.done->number != 1) {
    return absl::StrCat("ran ", rank.done->number,
                        " tests, expected 1: main() must hand its arguments "
                        "to InitGoogleTest");
  }
  if (FailedInOrder(rank) || SkippedInOrder(rank)) return "";
  if (rank.exit->ExitedWith(0)) return "";
  return absl::StrCat(rank.exit->ToString(), CutPhase(rank));
}

void AppendReported(const RankOutcome& rank, int r,
                    std::vector<Event>& events) {
  for (const TimedFrame& timed : rank.failures) {
    events.push_back(
        {WeightOf(timed.frame.text),
         timed.when,
         r,
         {timed.frame.file, timed.frame.number, timed.frame.text}});
  }
  if (rank.failures_dropped > 0) {
    events.push_back(
        {Weight::kTimeout,
         rank.ended,
         r,
         {"", 0, absl::StrCat(rank.failures_dropped, " further failures")}});
  }
}

// Drops echoes of failures that are known.
void DropEchoes(const RunOutcome& run, std::vector<Event>& events) {
  const auto is_echo = [](const Event& event) {
    return IsEcho(event.failure.text);
  };
  const bool known =
      !std::all_of(events.begin(), events.end(), is_echo) ||
      std::any_of(run.ranks.begin(), run.ranks.end(),
                  [](const RankOutcome& rank) { return rank.skip; });
  if (known) {
    events.erase(std::remove_if(events.begin(), events.end(), is_echo),
                 events.end());
  }
}

// Without differences that depend on a clock.
std::string TimeoutText(const RunOutcome& run) {
  const absl::Duration unit = absl::Milliseconds(10);
  return absl::FormatDuration(absl::Trunc(run.timeout + unit / 2, unit));
}

// Whether others wait for the rank, as far as the flight recorders show.
bool IsNamedByFlights(const RunOutcome& run, int rank) {
  return run.flight && run.flight->named.count(rank) != 0;
}

std::vector<Event> EventsOf(const RunOutcome& run) {
  std::vector<Event> events;
  for (int r = 0; r < static_cast<int>(run.ranks.size()); ++r) {
    const RankOutcome& rank = run.ranks[r];
    AppendReported(rank, r, events);
    if (std::string wrong = WrongEnd(run, r); !wrong.empty()) {
      const bool crash = !rank.vanished.empty() ||
                         (!rank.stopped && rank.exit->signal().has_value());
      Weight weight = crash ? Weight::kCrash : Weight::kFailure;
      // Because another one was killed.
      if (rank.ended_by_launcher) weight = Weight::kPeerLost;
      events.push_back({weight, rank.ended, r, {"", 0, std::move(wrong)}});
    }
    if (rank.suspended_in && !DiedAsExpected(run, r)) {
      events.push_back(
          {Weight::kSuspended, rank.ended, r, {"", 0, Suspension(rank)}});
    } else if (rank.stopped && IsNamedByFlights(run, r)) {
      events.push_back({Weight::kTimeout,
                        rank.ended,
                        r,
                        {"", 0,
                         absl::StrCat("kept others waiting (see the flight "
                                      "recorder);",
                                      CutPhase(rank))}});
    } else if (run.timed_out && rank.stopped) {
      events.push_back({Weight::kTimeout,
                        rank.ended,
                        r,
                        {"", 0,
                         absl::StrCat("did not end within ", TimeoutText(run),
                                      ";", CutPhase(rank))}});
    }
  }
  DropEchoes(run, events);
  const auto key = [&run](const Event& event) {
    const bool is_consequence =
        event.weight == Weight::kTimeout && !IsNamedByFlights(run, event.rank);
    return std::tuple(event.weight, is_consequence, event.when);
  };
  std::stable_sort(
      events.begin(), events.end(),
      [&key](const Event& a, const Event& b) { return key(a) < key(b); });
  return events;
}

std::string RankList(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      FormatRanks(ranks));
}

// The same failure of several ranks becomes one, at the place of the first.
std::vector<Verdict::Failure> Merge(const std::vector<Event>& events) {
  std::vector<std::pair<Verdict::Failure, std::vector<int>>> merged;
  for (const Event& event : events) {
    auto same = std::find_if(merged.begin(), merged.end(), [&](const auto& m) {
      return m.first.file == event.failure.file &&
             m.first.line == event.failure.line &&
             m.first.text == event.failure.text;
    });
    if (same == merged.end()) {
      merged.push_back({event.failure, {}});
      same = merged.end() - 1;
    }
    if (same->second.empty() || same->second.back() != event.rank) {
      same->second.push_back(event.rank);
    }
  }
  std::vector<Verdict::Failure> failures;
  for (auto& [failure, ranks] : merged) {
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    failure.file = PrintableText(failure.file);
    failure.text =
        absl::StrCat("[", RankList(ranks), "] ", PrintableText(failure.text));
    failures.push_back(std::move(failure));
  }
  return failures;
}

// The text of a failure on one line, for the headline.
std::string Summary(absl::string_view text) {
  constexpr size_t kMaxBytes = 300;
  absl::ConsumePrefix(&text, "Failed\n");
  std::string summary = absl::StrJoin(
      absl::StrSplit(text.substr(0, kMaxBytes), '\n', absl::SkipWhitespace()),
      "; ");
  if (text.size() > kMaxBytes) summary += " …";
  return summary;
}

std::string Table(const RunOutcome& run) {
  std::string table;
  for (int r = 0; r < static_cast<int>(run.ranks.size()); ++r) {
    absl::StrAppend(&table, "\n  rank ", r, " ", HowItEnded(run, r));
  }
  return table;
}

// Where a reader finds the files that a test kept at `path`. Bazel's sandbox is
// removed by then; its link to the logs remains.
std::string ToFind(absl::string_view path) {
  constexpr absl::string_view kLogs = "/testlogs/";
  const size_t logs = path.find(kLogs);
  if (logs == absl::string_view::npos) return std::string(path);
  return absl::StrCat("bazel-", path.substr(logs + 1),
                      ", packed into outputs.zip by Bazel");
}

// A line of each finding, and where more can be found.
std::string FurtherHints(const RunOutcome& run) {
  std::string hints;
  if (run.flight) {
    for (const std::string& finding : run.flight->findings) {
      absl::StrAppend(&hints, "\nflight recorder: ", finding);
    }
  }
  if (!run.kept_in.empty()) {
    absl::StrAppend(&hints, "\nwhole outputs and dumps: ", ToFind(run.kept_in));
    if (run.flight) absl::StrAppend(&hints, " (sherd flight DIR)");
  }
  return hints;
}

bool PassedInOrder(const RunOutcome& run, int rank) {
  return DiedAsExpected(run, rank) ||
         (run.ranks[rank].exit && !EndedAbnormally(run, rank) &&
          !run.ranks[rank].skip);
}

// For a run in which nothing failed: passed, or skipped, or a mixture.
Verdict JudgeSkips(const RunOutcome& run) {
  const int size = static_cast<int>(run.ranks.size());
  int passed = 0;
  int skipped = 0;
  bool alike = true;
  for (int r = 0; r < size; ++r) {
    const RankOutcome& rank = run.ranks[r];
    passed += PassedInOrder(run, r);
    skipped += rank.skip.has_value();
    alike = alike && rank.skip && run.ranks[0].skip &&
            rank.skip->number == run.ranks[0].skip->number;
  }
  Verdict verdict;
  if (passed == size) return verdict;
  if (alike) {
    verdict.kind = Verdict::Kind::kSkipped;
    verdict.text = PrintableText(run.ranks[0].skip->text);
    return verdict;
  }
  verdict.kind = Verdict::Kind::kFailed;
  verdict.text = absl::StrCat(
      skipped == size ? std::string("the ranks skipped for different reasons")
                      : absl::StrCat(skipped, " of ", size,
                                     " ranks skipped, expected all or none"),
      Table(run), FurtherHints(run));
  verdict.text = PrintableText(verdict.text);
  return verdict;
}

}  // namespace

bool EndedAbnormally(const RunOutcome& run, int rank) {
  const RankOutcome& outcome = run.ranks[rank];
  if (!outcome.exit || DiedAsExpected(run, rank)) return false;
  return !outcome.exit->ExitedWith(0) || !outcome.done || !outcome.pipe.ok();
}

Verdict Judge(const RunOutcome& run) {
  Verdict verdict;
  if (!run.start.ok()) {
    verdict.kind = Verdict::Kind::kFailed;
    verdict.text = PrintableText(
        absl::StrCat("the ranks could not be started: ", run.start.ToString()));
    return verdict;
  }
  const std::vector<Event> events = EventsOf(run);
  if (events.empty()) return JudgeSkips(run);
  verdict.kind = Verdict::Kind::kFailed;
  const Event& root = events.front();
  verdict.text = PrintableText(absl::StrCat(
      run.timed_out ? absl::StrCat("timed out after ", TimeoutText(run), "; ")
                    : "",
      "root cause: rank ", root.rank, " ",
      root.failure.file.empty()
          ? root.failure.text
          : absl::StrCat("failed at ", root.failure.file, ":",
                         root.failure.line, ": ", Summary(root.failure.text)),
      Table(run), FurtherHints(run)));
  verdict.failures = Merge(events);
  return verdict;
}

std::string PrefixLines(int rank, absl::string_view output) {
  if (output.empty()) return "";
  absl::ConsumeSuffix(&output, "\n");
  const std::string printable = PrintableText(output);
  std::string prefixed;
  for (absl::string_view line : absl::StrSplit(printable, '\n')) {
    absl::StrAppend(&prefixed, "[rank ", rank, "] ", line, "\n");
  }
  return prefixed;
}

}  // namespace sherd::testing::internal
