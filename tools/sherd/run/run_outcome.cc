#include "sherd/tools/sherd/run/run_outcome.h"

#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/printable_text.h"

namespace sherd {
namespace {

constexpr int kTimeoutExitCode = 124;
constexpr int kOutputClosedExitCode = 128 + SIGPIPE;

// How all ranks but `rank` ended.
std::string HowOthersEnded(const RunEnd& end, std::optional<int> rank) {
  std::vector<std::pair<std::string, std::vector<int>>> ways;
  for (size_t r = 0; r < end.ranks.size(); ++r) {
    if (rank == static_cast<int>(r)) continue;
    const std::string how = end.ranks[r].status.ToPhrase();
    const auto way = std::find_if(ways.begin(), ways.end(), [&](const auto& w) {
      return w.first == how;
    });
    if (way == ways.end()) {
      ways.push_back({how, {static_cast<int>(r)}});
    } else {
      way->second.push_back(static_cast<int>(r));
    }
  }
  std::string text;
  for (const auto& [how, ranks] : ways) {
    absl::StrAppend(&text, "; ", NameRanks(ranks), ": ", how);
  }
  return text;
}

// The dumps' findings if no error names a rank, and the path of the dumps.
std::string FlightText(const RunEnd& end) {
  if (end.flight.ranks.empty()) return "";
  const FlightFinding* const finding = end.flight.FirstDeviation();
  const bool is_named =
      !end.flight.failed.empty() && !end.flight.failed.front().named_by.empty();
  return absl::StrCat(is_named || finding == nullptr
                          ? ""
                          : absl::StrCat("; ", PrintableLine(finding->text)),
                      "; inspect with: sherd flight ", end.flight_directory);
}

bool IsRankOf(const RunEnd& end, int rank) {
  return rank < static_cast<int>(end.ranks.size());
}

// Whether several ranks ended by themselves, all with one exit code: as after
// an error that concerns all ranks equally, such as a full disk.
bool AllFailedAlike(const RunEnd& end) {
  if (end.ranks.size() < 2) return false;
  return std::all_of(
      end.ranks.begin(), end.ranks.end(), [&](const RankEnd& rank) {
        return !rank.status.ok() && !rank.status.signal() &&
               !rank.was_signalled &&
               rank.status.ShellCode() == end.ranks[0].status.ShellCode();
      });
}

std::vector<int> FailedRanks(const RunEnd& end) {
  std::set<int> failed;
  for (const FlightFailedRank& one : end.flight.failed) {
    if (IsRankOf(end, one.rank)) failed.insert(one.rank);
  }
  for (size_t r = 0; r < end.ranks.size(); ++r) {
    if (end.ranks[r].status.signal() && !end.ranks[r].was_signalled) {
      failed.insert(static_cast<int>(r));
    }
  }
  if (failed.empty() && end.first_failure) failed.insert(*end.first_failure);
  return {failed.begin(), failed.end()};
}

// "rank 2 of 4 failed, as ranks 0, 1, 3 report".
std::string DescribeFailedRank(const RunEnd& end, int rank, bool is_named) {
  const std::string who =
      absl::StrCat("rank ", rank, " of ", end.ranks.size(), " failed");
  if (!is_named) return absl::StrCat(who, " first");
  const std::vector<int>& by = end.flight.failed.front().named_by;
  return by.empty() ? absl::StrCat(who, ", as the dumps show")
                    : absl::StrCat(who, ", as ", NameRanks(by),
                                   by.size() == 1 ? " reports" : " report");
}

RunOutcome JudgeFailure(const RunEnd& end) {
  RunOutcome outcome = {.failed = FailedRanks(end)};
  const bool is_named = !end.flight.failed.empty() &&
                        IsRankOf(end, end.flight.failed.front().rank);
  const int root =
      is_named ? end.flight.failed.front().rank : *end.first_failure;
  const RankEnd& root_end = end.ranks[root];
  const int deciding = !root_end.status.ok() && !root_end.was_signalled
                           ? root
                           : end.first_failure.value_or(root);
  size_t ended_well = 0, excused = 0;
  for (size_t r = 0; r < end.ranks.size(); ++r) {
    const bool failed = std::binary_search(
        outcome.failed.begin(), outcome.failed.end(), static_cast<int>(r));
    if (end.ranks[r].status.ok()) {
      ++ended_well;
    } else if (failed) {
      ++excused;
    }
  }
  const bool all_left_ended_well =
      end.goes_on && ended_well > 0 && ended_well + excused == end.ranks.size();
  outcome.exit_code =
      all_left_ended_well ? 0 : end.ranks[deciding].status.ShellCode();
  const std::string when =
      deciding == end.first_failure
          ? absl::StrFormat(" after %.1f s",
                            absl::ToDoubleSeconds(end.failed_after))
          : "";
  const std::string because =
      end.passed_on == 0
          ? ""
          : absl::StrCat(" (signal ", end.passed_on, " passed on)");
  if (!is_named && AllFailedAlike(end)) {
    outcome.summary = absl::StrCat(
        "all ", end.ranks.size(), " ranks failed: ", root_end.status.ToPhrase(),
        "; the first was rank ", root, when, because, FlightText(end));
    return outcome;
  }
  outcome.summary = absl::StrCat(
      DescribeFailedRank(end, root, is_named), ": ", root_end.status.ToPhrase(),
      root_end.was_signalled && is_named ? " by sherd run" : "", when, because,
      HowOthersEnded(end, root), FlightText(end));
  return outcome;
}

}  // namespace

std::string NameRanks(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(ranks, ", "));
}

RunOutcome JudgeRun(const RunEnd& end) {
  if (end.timeout) {
    const bool is_named = !end.flight.failed.empty();
    return {
        .exit_code = kTimeoutExitCode,
        .summary = absl::StrCat(
            "timeout: ", NameRanks(end.late_ranks), " of ", end.ranks.size(),
            " had not ended after ", absl::FormatDuration(*end.timeout),
            is_named ? absl::StrCat(
                           "; ", DescribeFailedRank(
                                     end, end.flight.failed.front().rank, true))
                     : "",
            HowOthersEnded(end, std::nullopt), FlightText(end))};
  }
  if (end.output_broken) {
    return {.exit_code = kOutputClosedExitCode,
            .summary = absl::StrCat("the reader of the output went away",
                                    HowOthersEnded(end, std::nullopt))};
  }
  if (!end.first_failure) return {};
  return JudgeFailure(end);
}

}  // namespace sherd
