#include "sherd/core/comm/group/survivors.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

constexpr char kMade[] = "made";
constexpr char kFailed[] = "failed";
constexpr int kNoRank = -1;

// Between two looks at the store.
constexpr absl::Duration kShortestPause = absl::Milliseconds(2);
constexpr absl::Duration kLongestPause = absl::Milliseconds(50);

// The ranks that more than half of the other arrived ranks suspect.
std::vector<int> SuspectsOfMost(const std::map<int, int>& came) {
  std::map<int, size_t> votes;
  for (const auto& [rank, suspect] : came) {
    if (suspect != kNoRank && suspect != rank) ++votes[suspect];
  }
  std::vector<int> most;
  for (const auto& [suspect, count] : votes) {
    if (2 * count > came.size() - came.count(suspect)) most.push_back(suspect);
  }
  return most;
}

bool Has(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

SurvivorAgreement::SurvivorAgreement(Store& store, int rank, int size,
                                     Sight sight)
    : store_(store), rank_(rank), sight_(std::move(sight)), candidates_(size) {
  std::iota(candidates_.begin(), candidates_.end(), 0);
}

std::string SurvivorAgreement::Key(absl::string_view name) const {
  return absl::StrCat("shrink/", round_, "/", name);
}

std::string SurvivorAgreement::Key(absl::string_view name, int rank) const {
  return absl::StrCat(Key(name), "/", rank);
}

absl::StatusOr<std::optional<std::string>> SurvivorAgreement::Look(
    const std::string& key) const {
  SHERD_ASSIGN_OR_RETURN(const bool there, store_.Contains(key));
  if (!there) return std::nullopt;
  SHERD_ASSIGN_OR_RETURN(
      std::string value,
      store_.Get(key, Deadline::After(absl::ZeroDuration())));
  return value;
}

absl::StatusOr<bool> SurvivorAgreement::HasExited(int rank) const {
  if (!sight_.has_exited(rank)) return store_.Contains(Key("exited", rank));
  SHERD_RETURN_IF_ERROR(store_.Set(Key("exited", rank), ""));
  return true;
}

absl::StatusOr<bool> SurvivorAgreement::AreSettled(bool is_patient,
                                                   Came& came) const {
  std::vector<int> missing;
  for (const int rank : candidates_) {
    if (came.count(rank) != 0) continue;
    SHERD_ASSIGN_OR_RETURN(const std::optional<std::string> record,
                           Look(Key("came", rank)));
    if (!record) {
      missing.push_back(rank);
    } else if (!absl::SimpleAtoi(*record, &came[rank])) {
      came[rank] = kNoRank;
    }
  }
  const std::vector<int> suspects = SuspectsOfMost(came);
  for (const int rank : missing) {
    if (!is_patient && (Has(suspects, rank) || sight_.is_stopped(rank))) {
      continue;
    }
    SHERD_ASSIGN_OR_RETURN(const bool exited, HasExited(rank));
    if (!exited) return false;
  }
  return true;
}

absl::StatusOr<std::vector<int>> SurvivorAgreement::Survivors(Came came) const {
  for (const int rank : candidates_) {
    if (came.count(rank) == 0) continue;
    SHERD_ASSIGN_OR_RETURN(const bool exited, HasExited(rank));
    if (exited) came.erase(rank);
  }
  const std::vector<int> suspects = SuspectsOfMost(came);
  if (suspects.size() == 1) came.erase(suspects.front());
  std::vector<int> survivors;
  for (const auto& [rank, suspect] : came) survivors.push_back(rank);
  return survivors;
}

absl::StatusOr<std::vector<int>> SurvivorAgreement::Accept(
    absl::string_view list) {
  std::vector<int> members;
  for (const absl::string_view field : absl::StrSplit(list, ',')) {
    int rank;
    if (!absl::SimpleAtoi(field, &rank) || !Has(candidates_, rank)) {
      return absl::InternalError(absl::StrCat(
          "the list of ranks that are left is \"", list,
          "\", expected some of ", absl::StrJoin(candidates_, ",")));
    }
    members.push_back(rank);
  }
  candidates_ = members;
  return members;
}

absl::StatusOr<std::vector<int>> SurvivorAgreement::AgreeOnMembers(
    std::optional<int> suspect, Deadline deadline) {
  Came came = {{rank_, suspect.value_or(kNoRank)}};
  SHERD_RETURN_IF_ERROR(
      store_.Set(Key("came", rank_), absl::StrCat(came[rank_])));
  const std::string key = Key("members");
  const Deadline arrivals = Deadline::After(deadline.Remaining() / 2);
  const Deadline patience = Deadline::After(kPatience);
  for (absl::Duration pause = kShortestPause;;
       pause = std::min(2 * pause, kLongestPause)) {
    SHERD_ASSIGN_OR_RETURN(const std::optional<std::string> decided, Look(key));
    if (decided) return Accept(*decided);
    // Ranks that arrive before the time is over are members: checked once more.
    const bool is_late = arrivals.HasPassed();
    SHERD_ASSIGN_OR_RETURN(const bool settled,
                           AreSettled(!patience.HasPassed(), came));
    if (settled || is_late) {
      SHERD_ASSIGN_OR_RETURN(const std::vector<int> survivors, Survivors(came));
      SHERD_ASSIGN_OR_RETURN(
          const std::string list,
          store_.CompareSet(key, "", absl::StrJoin(survivors, ",")));
      return Accept(list);
    }
    absl::SleepFor(pause);
  }
}

absl::StatusOr<bool> SurvivorAgreement::Decide(const char* outcome) {
  SHERD_ASSIGN_OR_RETURN(const std::string decided,
                         store_.CompareSet(Key("outcome"), "", outcome));
  ++round_;
  return decided == kMade;
}

absl::StatusOr<bool> SurvivorAgreement::AgreeOnOutcome(bool made,
                                                       Deadline deadline) {
  if (!made) return Decide(kFailed);
  SHERD_RETURN_IF_ERROR(store_.Set(Key("made", rank_), ""));
  std::vector<int> missing = candidates_;
  for (absl::Duration pause = kShortestPause;;
       pause = std::min(2 * pause, kLongestPause)) {
    SHERD_ASSIGN_OR_RETURN(const bool decided, store_.Contains(Key("outcome")));
    bool failed = decided || deadline.HasPassed();
    std::vector<int> still_missing;
    for (const int rank : missing) {
      // Asked for first: a rank writes before its process ends.
      SHERD_ASSIGN_OR_RETURN(const bool exited, HasExited(rank));
      SHERD_ASSIGN_OR_RETURN(const bool has_made,
                             store_.Contains(Key("made", rank)));
      if (has_made) continue;
      still_missing.push_back(rank);
      failed |= exited;
    }
    if (still_missing.empty()) return Decide(kMade);
    if (failed) return Decide(kFailed);
    missing = std::move(still_missing);
    absl::SleepFor(pause);
  }
}

}  // namespace sherd::internal
