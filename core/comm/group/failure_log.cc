#include "sherd/core/comm/group/failure_log.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/store/watched_store.h"
#include "sherd/core/process/process_identity.h"

namespace sherd::internal {
namespace {

// For a read without waiting: the deadline has passed already.
Deadline Now() { return Deadline::After(absl::ZeroDuration()); }

// How long a tracer may hold a process that counts as running.
constexpr absl::Duration kTraceTime = absl::Milliseconds(500);

// Processes checked by one call of FindFailedRank.
constexpr size_t kLooks = 16;

constexpr char kFailedKey[] = "failed";
std::string FailureKey(int rank) { return absl::StrCat("failure/", rank); }
std::string LeftKey(int rank) { return absl::StrCat("left/", rank); }

// A rank's failure record.
struct Record {
  // -1 if unknown.
  int failed_rank = -1;
  bool certain = false;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string text;

  // Whether the rank only waited, for an unknown rank.
  bool IsOfAVictim() const {
    return failed_rank < 0 && (code == absl::StatusCode::kUnavailable ||
                               code == absl::StatusCode::kDeadlineExceeded);
  }
};

Record ParseRecord(absl::string_view bytes) {
  std::pair<absl::string_view, absl::string_view> fields =
      absl::StrSplit(bytes, absl::MaxSplits('\n', 1));
  Record record;
  record.certain = absl::ConsumeSuffix(&fields.first, " certain");
  record.text = std::string(fields.second);
  const std::pair<absl::string_view, absl::string_view> numbers =
      absl::StrSplit(fields.first, absl::MaxSplits(' ', 1));
  int code = 0;
  if (!absl::SimpleAtoi(numbers.first, &record.failed_rank) ||
      !absl::SimpleAtoi(numbers.second, &code)) {
    record.failed_rank = -1;
    return record;
  }
  record.code = static_cast<absl::StatusCode>(code);
  return record;
}

// Whether `process` is stopped, and not only for a moment by a tracer.
bool StandsStill(const std::string& process) {
  const Deadline deadline = Deadline::After(kTraceTime);
  for (;;) {
    const ProcessState state = StateOf(process);
    if (state != ProcessState::kTraced) return state == ProcessState::kStopped;
    if (deadline.HasPassed()) return true;
    absl::SleepFor(absl::Milliseconds(2));
  }
}

}  // namespace

std::optional<std::string> DescribeEnd(const std::string& process,
                                       ProcessState state) {
  const std::string number = ProcessNumber(process);
  if (state == ProcessState::kEnded) {
    return absl::StrCat("died (process ", number, " has ended)");
  }
  if (state == ProcessState::kStopped || state == ProcessState::kTraced) {
    return absl::StrCat("is stopped (process ", number, ")");
  }
  return std::nullopt;
}

struct FailureLog::Evidence {
  enum class Kind {
    kNothing,
    kDied,
    kStopped,
    kLeft,
    kWaited,
    kFailed,
    kConclusive,
  };
  Kind kind = Kind::kNothing;
  int failed_rank = -1;
  std::string text;
  // Of a written record: how that rank's operation ended.
  absl::StatusCode code = absl::StatusCode::kUnknown;
};

FailureLog::FailureLog(std::shared_ptr<Store> store,
                       const Membership& membership)
    : store_(std::move(store)),
      membership_(membership),
      next_look_(static_cast<uint32_t>(membership.rank() * kLooks)) {}

absl::StatusOr<std::vector<std::string>> FailureLog::Exchange(
    absl::string_view name, absl::string_view value, Deadline deadline) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < membership_.size(); ++rank) {
    keys.push_back(absl::StrCat("exchange/", name, "/", rank));
  }
  SHERD_RETURN_IF_ERROR(store_->Set(keys[membership_.rank()], value));
  // The first rank that may be missing: those before it took part.
  int missing = 0;
  const auto advance = [&] {
    while (missing + 1 < membership_.size() &&
           store_->Contains(keys[missing]).value_or(false)) {
      ++missing;
    }
  };
  WatchedStore watched(*store_, [&]() -> std::optional<int> {
    advance();
    const bool ended =
        StateOf(membership_.process(missing)) == ProcessState::kEnded;
    return ended ? missing : FindFailedRank();
  });
  absl::StatusOr<std::vector<std::string>> values =
      watched.MultiGet(keys, deadline);
  if (const std::optional<int> failed = watched.failed_rank()) {
    const RootCause root_cause = FindRootCause(*failed, "gave up");
    const int rank_to_name = root_cause.rank.value_or(*failed);
    return WithFailedRank(absl::UnavailableError(absl::StrCat(
                              "rank ", rank_to_name, ": ", root_cause.cause)),
                          rank_to_name);
  }
  if (!absl::IsDeadlineExceeded(values.status())) return values;
  advance();
  return WithFailedRank(absl::DeadlineExceededError(absl::StrCat(
                            "rank ", missing, " did not come in time")),
                        missing);
}

void FailureLog::Report(const absl::Status& status,
                        std::optional<int> failed_rank, bool is_conclusive) {
  if (RankZeroIsStopped()) return;
  // Losing this record costs others the root cause, not their error.
  const absl::StatusOr<bool> reported =
      store_->Contains(FailureKey(membership_.rank()));
  if (!reported.ok() || *reported) return;
  store_
      ->Set(
          FailureKey(membership_.rank()),
          absl::StrCat(failed_rank ? *failed_rank : -1, " ",
                       static_cast<int>(status.code()),
                       is_conclusive ? " certain" : "", "\n", status.message()))
      .IgnoreError();
  if (!absl::IsDeadlineExceeded(status)) {
    store_->CompareSet(kFailedKey, "", absl::StrCat(membership_.rank()))
        .IgnoreError();
  }
}

void FailureLog::ReportLeaving() {
  store_->Set(LeftKey(membership_.rank()), "").IgnoreError();
}

FailureLog::Evidence FailureLog::WrittenBy(int rank) const {
  // Read first: a rank that failed records that before it leaves.
  const bool left = store_->Get(LeftKey(rank), Now()).ok();
  if (absl::StatusOr<std::string> record = store_->Get(FailureKey(rank), Now());
      record.ok()) {
    Record read = ParseRecord(*record);
    if (read.certain && read.failed_rank < membership_.size()) {
      return {Evidence::Kind::kConclusive, read.failed_rank,
              std::move(read.text), read.code};
    }
    if (read.failed_rank >= 0 && read.failed_rank < membership_.size() &&
        read.failed_rank != rank) {
      return {Evidence::Kind::kWaited, read.failed_rank, std::move(read.text),
              read.code};
    }
    return {Evidence::Kind::kFailed, -1, std::move(read.text)};
  }
  if (left) return {Evidence::Kind::kLeft, -1, "left the group"};
  return {};
}

FailureLog::Evidence FailureLog::LookInto(int rank, Deadline deadline) const {
  for (;;) {
    // Read first: a rank writes its record before its process ends.
    const ProcessState state = StateOf(membership_.process(rank));
    Evidence written = WrittenBy(rank);
    if (written.kind != Evidence::Kind::kNothing) return written;
    const bool is_stopped =
        state == ProcessState::kStopped ||
        (state == ProcessState::kTraced && deadline.HasPassed());
    if (is_stopped || state == ProcessState::kEnded) {
      return {is_stopped ? Evidence::Kind::kStopped : Evidence::Kind::kDied, -1,
              *DescribeEnd(membership_.process(rank), state)};
    }
    if (deadline.HasPassed()) return {};
    absl::SleepFor(absl::Milliseconds(2));
  }
}

bool FailureLog::RankZeroIsStopped() const {
  return membership_.rank() != 0 && StandsStill(membership_.process(0));
}

std::optional<int> FailureLog::FirstSuspect() const {
  if (RankZeroIsStopped()) return 0;
  std::optional<int> victim;
  for (int rank = 0; rank < membership_.size(); ++rank) {
    if (rank == membership_.rank()) continue;
    // Read first, as in LookInto.
    const ProcessState state = StateOf(membership_.process(rank));
    // A victim may have ended since.
    if (const auto record = store_->Get(FailureKey(rank), Now()); record.ok()) {
      if (!ParseRecord(*record).IsOfAVictim()) return rank;
      if (!victim) victim = rank;
      continue;
    }
    if (state == ProcessState::kEnded ||
        StandsStill(membership_.process(rank))) {
      return rank;
    }
  }
  return victim;
}

std::optional<int> FailureLog::FindFailedRank() const {
  if (RankZeroIsStopped()) return std::nullopt;
  int failed = 0;
  if (const auto first = store_->Get(kFailedKey, Now());
      first.ok() && absl::SimpleAtoi(*first, &failed) && failed >= 0 &&
      failed < membership_.size() && failed != membership_.rank()) {
    return failed;
  }
  const size_t looks = std::min(kLooks, membership_.neighbors().size());
  for (size_t i = 0; i < looks; ++i) {
    const int rank = membership_.neighbors()[next_look_.fetch_add(1) %
                                             membership_.neighbors().size()];
    if (StateOf(membership_.process(rank)) == ProcessState::kEnded &&
        IsWaitedFor(rank)) {
      return rank;
    }
  }
  return std::nullopt;
}

bool FailureLog::IsWaitedFor(int rank) const {
  // A store that does not answer provides no evidence.
  const absl::StatusOr<bool> left = store_->Contains(LeftKey(rank));
  const absl::StatusOr<bool> failed = store_->Contains(FailureKey(rank));
  if (!left.ok() || !failed.ok() || *left) return false;
  if (!*failed) return true;
  const absl::StatusOr<std::string> record =
      store_->Get(FailureKey(rank), Now());
  return record.ok() &&
         ParseRecord(*record).code != absl::StatusCode::kDeadlineExceeded;
}

std::vector<int> FailureLog::EndedRanks() const {
  std::vector<int> ended;
  for (const int rank : membership_.neighbors()) {
    if (StateOf(membership_.process(rank)) == ProcessState::kEnded &&
        !HasLeft(rank)) {
      ended.push_back(rank);
    }
  }
  return ended;
}

bool FailureLog::HasLeft(int rank) const {
  if (RankZeroIsStopped()) return false;
  const absl::StatusOr<bool> left = store_->Contains(LeftKey(rank));
  return left.ok() && *left;
}

bool FailureLog::HasExited(int rank) const {
  return StateOf(membership_.process(rank)) == ProcessState::kEnded ||
         HasLeft(rank);
}

bool FailureLog::IsStopped(int rank) const {
  return StandsStill(membership_.process(rank));
}

FailureLog::RootCause FailureLog::FindRootCause(int peer,
                                                absl::string_view symptom) {
  if (RankZeroIsStopped()) {
    return {0, "is stopped", absl::StatusCode::kDeadlineExceeded};
  }
  const Deadline deadline = Deadline::After(kGrace);
  std::vector<int> chain = {peer};
  // The error of the rank that waited for the suspect: connections that it
  // closed because it timed out do not mean that a peer died.
  std::optional<absl::StatusCode> seen;
  for (;;) {
    const int suspect = chain.back();
    const Evidence evidence = LookInto(suspect, deadline);
    switch (evidence.kind) {
      case Evidence::Kind::kDied:
        return {suspect, evidence.text, absl::StatusCode::kUnavailable};
      case Evidence::Kind::kConclusive:
        return {evidence.failed_rank < 0 ? std::nullopt
                                         : std::optional(evidence.failed_rank),
                evidence.text, absl::StatusCode::kInvalidArgument};
      case Evidence::Kind::kStopped:
        return {suspect, evidence.text, absl::StatusCode::kDeadlineExceeded};
      case Evidence::Kind::kLeft:
      case Evidence::Kind::kFailed:
        return {suspect, evidence.text, std::nullopt};
      case Evidence::Kind::kNothing:
        if (seen == absl::StatusCode::kDeadlineExceeded) {
          return {suspect, "did not come in time", seen};
        }
        return {suspect, std::string(symptom), std::nullopt};
      case Evidence::Kind::kWaited:
        seen = evidence.code;
        break;
    }
    if (evidence.failed_rank == membership_.rank()) {
      return {
          suspect,
          absl::StrCat("gave up waiting for this rank (", evidence.text, ")"),
          std::nullopt};
    }
    if (std::find(chain.begin(), chain.end(), evidence.failed_rank) !=
        chain.end()) {
      return {suspect,
              absl::StrCat("and rank ", evidence.failed_rank,
                           " wait for each other: the ranks made different "
                           "calls (",
                           evidence.text, ")"),
              std::nullopt};
    }
    chain.push_back(evidence.failed_rank);
  }
}

}  // namespace sherd::internal
