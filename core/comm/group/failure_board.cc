#include "sherd/core/comm/group/failure_board.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/process/process_identity.h"

namespace sherd::internal {
namespace {

// A plain look: the deadline has passed already.
Deadline Now() { return Deadline::After(absl::ZeroDuration()); }

// How often a wait for a member looks whether its process still lives.
constexpr absl::Duration kLook = absl::Milliseconds(100);

// How long a tracer may hold a process that counts as running.
constexpr absl::Duration kTraceTime = absl::Milliseconds(500);

// Processes that one look for lost ranks looks at.
constexpr size_t kLooks = 16;

constexpr char kFailedKey[] = "failed";
std::string MemberKey(int rank) { return absl::StrCat("member/", rank); }
std::string JoinedKey(int rank) { return absl::StrCat("joined/", rank); }
std::string FailureKey(int rank) { return absl::StrCat("failure/", rank); }
std::string LeftKey(int rank) { return absl::StrCat("left/", rank); }

// Of what DescribeOwnProcess() wrote.
std::string ProcessNumber(const std::string& description) {
  const auto parsed = ProcessDescription::Parse(description);
  return parsed ? absl::StrCat(parsed->process.pid) : "unknown";
}

// What a rank wrote of its failure.
struct Record {
  // -1 if it does not know.
  int blamed = -1;
  bool certain = false;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string text;

  // It waited, for whom it does not know.
  bool IsOfAVictim() const {
    return blamed < 0 && (code == absl::StatusCode::kUnavailable ||
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
  if (!absl::SimpleAtoi(numbers.first, &record.blamed) ||
      !absl::SimpleAtoi(numbers.second, &code)) {
    record.blamed = -1;
    return record;
  }
  record.code = static_cast<absl::StatusCode>(code);
  return record;
}

// Whether it stands still, and not for a moment only.
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

struct FailureBoard::Clue {
  enum class Kind {
    kNothing,
    kDied,
    kStopped,
    kLeft,
    kBlames,
    kFailed,
    kKnows,
  };
  Kind kind = Kind::kNothing;
  int blamed = -1;
  std::string text;
  // Of a written record: how that rank's operation ended.
  absl::StatusCode code = absl::StatusCode::kUnknown;
};

FailureBoard::FailureBoard(std::shared_ptr<Store> store, int rank, int size,
                           std::vector<std::string> expected)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      expected_(std::move(expected)),
      processes_(size) {}

absl::StatusOr<std::string> FailureBoard::AwaitMember(int rank,
                                                      Deadline deadline) {
  if (expected_.empty()) return store_->Get(MemberKey(rank), deadline);
  bool ended = false;
  for (;;) {
    absl::StatusOr<std::string> member = store_->Get(
        MemberKey(rank),
        Deadline::Earlier(deadline, ended ? Now() : Deadline::After(kLook)));
    if (!absl::IsDeadlineExceeded(member.status())) return member;
    if (ended) {
      return WithFailedRank(
          absl::UnavailableError(absl::StrCat("rank ", rank, " died (process ",
                                              ProcessNumber(expected_[rank]),
                                              " is gone) before it joined")),
          rank);
    }
    if (deadline.HasPassed()) return member;
    // What it wrote before its end is looked for once more.
    ended = StateOf(expected_[rank]) == ProcessState::kEnded;
  }
}

absl::Status FailureBoard::Join(Deadline deadline) {
  SHERD_ASSIGN_OR_RETURN(const int64_t joined,
                         store_->Add(JoinedKey(rank_), 1));
  if (joined != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank_,
        " has joined already: two processes have the same rank, or the "
        "rendezvous is left over from another run and must be removed"));
  }
  SHERD_RETURN_IF_ERROR(store_->Set(
      MemberKey(rank_), absl::StrCat(size_, " ", DescribeOwnProcess())));
  for (int rank = 0; rank < size_; ++rank) {
    const absl::StatusOr<std::string> member = AwaitMember(rank, deadline);
    if (absl::IsDeadlineExceeded(member.status())) {
      std::vector<int> missing;
      for (int r = rank; r < size_; ++r) {
        if (!store_->Get(MemberKey(r), Now()).ok()) missing.push_back(r);
      }
      return WithFailedRank(
          absl::DeadlineExceededError(absl::StrCat(
              missing.size() == 1 ? "rank " : "ranks ",
              absl::StrJoin(missing, ", "), " of ", size_,
              " did not join in time: were all of them started, with the same "
              "rendezvous?")),
          rank);
    }
    if (!member.ok()) return member.status();
    const std::pair<std::string, std::string> fields =
        absl::StrSplit(*member, absl::MaxSplits(' ', 1));
    if (fields.first != absl::StrCat(size_)) {
      // These are two ranks of several: who deviates is not known.
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " says that the world size is ",
                       fields.first, ", rank ", rank_, " says ", size_));
    }
    processes_[rank] = fields.second;
  }
  const auto own = ProcessDescription::Parse(processes_[rank_]);
  for (int rank = 0; rank < size_; ++rank) {
    const auto other = ProcessDescription::Parse(processes_[rank]);
    if (rank != rank_ && own && other && own->IsBeside(*other)) {
      neighbors_.push_back(rank);
    }
  }
  next_look_ = static_cast<uint32_t>(rank_ * kLooks);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FailureBoard::Exchange(
    absl::string_view name, absl::string_view value, Deadline deadline) {
  const auto key = [name](int rank) {
    return absl::StrCat("exchange/", name, "/", rank);
  };
  SHERD_RETURN_IF_ERROR(store_->Set(key(rank_), value));
  std::vector<std::string> values;
  for (int rank = 0; rank < size_; ++rank) {
    for (std::optional<int> lost;;) {
      absl::StatusOr<std::string> found = store_->Get(
          key(rank),
          Deadline::Earlier(deadline, lost ? Now() : Deadline::After(kLook)));
      if (found.ok()) {
        values.push_back(*std::move(found));
        break;
      }
      if (!absl::IsDeadlineExceeded(found.status())) return found.status();
      if (lost) {
        const Verdict verdict = FindCulprit(*lost, "gave up");
        const int rank_to_name = verdict.rank.value_or(*lost);
        return WithFailedRank(absl::UnavailableError(absl::StrCat(
                                  "rank ", rank_to_name, ": ", verdict.cause)),
                              rank_to_name);
      }
      if (deadline.HasPassed()) {
        return WithFailedRank(absl::DeadlineExceededError(absl::StrCat(
                                  "rank ", rank, " did not come in time")),
                              rank);
      }
      // What it wrote before its end is looked for once more.
      const bool ended = StateOf(processes_[rank]) == ProcessState::kEnded;
      lost = ended ? rank : FindLost();
    }
  }
  return values;
}

void FailureBoard::Report(const absl::Status& status, std::optional<int> blamed,
                          bool is_verdict) {
  if (RankZeroIsStopped()) return;
  // Losing this record costs others the name of the culprit, not their error.
  const absl::StatusOr<bool> reported = store_->Contains(FailureKey(rank_));
  if (!reported.ok() || *reported) return;
  store_
      ->Set(FailureKey(rank_),
            absl::StrCat(blamed ? *blamed : -1, " ",
                         static_cast<int>(status.code()),
                         is_verdict ? " certain" : "", "\n", status.message()))
      .IgnoreError();
  if (!absl::IsDeadlineExceeded(status)) {
    store_->CompareSet(kFailedKey, "", absl::StrCat(rank_)).IgnoreError();
  }
}

bool FailureBoard::OneHost() const {
  return neighbors_.size() + 1 == processes_.size();
}

std::vector<int> FailureBoard::HostOfRank() const {
  absl::flat_hash_map<absl::string_view, int> hosts;
  std::vector<int> host_of_rank;
  host_of_rank.reserve(processes_.size());
  for (absl::string_view process : processes_) {
    const absl::string_view boot = process.substr(0, process.find(' '));
    const int next = static_cast<int>(hosts.size());
    host_of_rank.push_back(hosts.try_emplace(boot, next).first->second);
  }
  return host_of_rank;
}

void FailureBoard::ReportLeaving() {
  store_->Set(LeftKey(rank_), "").IgnoreError();
}

FailureBoard::Clue FailureBoard::WrittenBy(int rank) const {
  // Asked for first: a rank that failed writes that before it leaves.
  const bool left = store_->Get(LeftKey(rank), Now()).ok();
  if (absl::StatusOr<std::string> record = store_->Get(FailureKey(rank), Now());
      record.ok()) {
    Record read = ParseRecord(*record);
    if (read.certain && read.blamed < size_) {
      return {Clue::Kind::kKnows, read.blamed, std::move(read.text), read.code};
    }
    if (read.blamed >= 0 && read.blamed < size_ && read.blamed != rank) {
      return {Clue::Kind::kBlames, read.blamed, std::move(read.text),
              read.code};
    }
    return {Clue::Kind::kFailed, -1, std::move(read.text)};
  }
  if (left) return {Clue::Kind::kLeft, -1, "left the group"};
  return {};
}

FailureBoard::Clue FailureBoard::LookInto(int rank, Deadline deadline) const {
  for (;;) {
    // Asked for first: a rank writes before its process ends.
    const ProcessState state = StateOf(processes_[rank]);
    Clue written = WrittenBy(rank);
    if (written.kind != Clue::Kind::kNothing) return written;
    const std::string number = ProcessNumber(processes_[rank]);
    if (state == ProcessState::kStopped ||
        (state == ProcessState::kTraced && deadline.HasPassed())) {
      return {Clue::Kind::kStopped, -1,
              absl::StrCat("is stopped (process ", number, ")")};
    }
    if (state == ProcessState::kEnded) {
      return {Clue::Kind::kDied, -1,
              absl::StrCat("died (process ", number, " is gone)")};
    }
    if (deadline.HasPassed()) return {};
    absl::SleepFor(absl::Milliseconds(2));
  }
}

bool FailureBoard::RankZeroIsStopped() const {
  return rank_ != 0 && StandsStill(processes_[0]);
}

std::optional<int> FailureBoard::FirstSuspect() const {
  if (RankZeroIsStopped()) return 0;
  std::optional<int> victim;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    // Asked for first, as in LookInto.
    const ProcessState state = StateOf(processes_[rank]);
    // A victim may have ended since.
    if (const auto record = store_->Get(FailureKey(rank), Now()); record.ok()) {
      if (!ParseRecord(*record).IsOfAVictim()) return rank;
      if (!victim) victim = rank;
      continue;
    }
    if (state == ProcessState::kEnded || StandsStill(processes_[rank])) {
      return rank;
    }
  }
  return victim;
}

std::optional<int> FailureBoard::FindLost() const {
  if (RankZeroIsStopped()) return std::nullopt;
  int failed = 0;
  if (const auto first = store_->Get(kFailedKey, Now());
      first.ok() && absl::SimpleAtoi(*first, &failed) && failed >= 0 &&
      failed < size_ && failed != rank_) {
    return failed;
  }
  const size_t looks = std::min(kLooks, neighbors_.size());
  for (size_t i = 0; i < looks; ++i) {
    const int rank = neighbors_[next_look_.fetch_add(1) % neighbors_.size()];
    if (StateOf(processes_[rank]) == ProcessState::kEnded && IsMissed(rank)) {
      return rank;
    }
  }
  return std::nullopt;
}

bool FailureBoard::IsMissed(int rank) const {
  // A store that does not answer says nothing.
  const absl::StatusOr<bool> left = store_->Contains(LeftKey(rank));
  const absl::StatusOr<bool> failed = store_->Contains(FailureKey(rank));
  if (!left.ok() || !failed.ok() || *left) return false;
  if (!*failed) return true;
  const absl::StatusOr<std::string> record =
      store_->Get(FailureKey(rank), Now());
  return record.ok() &&
         ParseRecord(*record).code != absl::StatusCode::kDeadlineExceeded;
}

std::vector<int> FailureBoard::EndedRanks() const {
  std::vector<int> ended;
  for (const int rank : neighbors_) {
    if (StateOf(processes_[rank]) == ProcessState::kEnded && !HasLeft(rank)) {
      ended.push_back(rank);
    }
  }
  return ended;
}

bool FailureBoard::HasLeft(int rank) const {
  if (RankZeroIsStopped()) return false;
  const absl::StatusOr<bool> left = store_->Contains(LeftKey(rank));
  return left.ok() && *left;
}

bool FailureBoard::IsGone(int rank) const {
  return StateOf(processes_[rank]) == ProcessState::kEnded || HasLeft(rank);
}

bool FailureBoard::IsStopped(int rank) const {
  return StandsStill(processes_[rank]);
}

FailureBoard::Verdict FailureBoard::FindCulprit(int peer,
                                                absl::string_view symptom) {
  if (RankZeroIsStopped()) {
    return {0, "is stopped", absl::StatusCode::kDeadlineExceeded};
  }
  const Deadline deadline = Deadline::After(kGrace);
  std::vector<int> chain = {peer};
  // What the rank that waited for the suspect itself saw: connections that
  // closed because its time was over are no lost peer.
  std::optional<absl::StatusCode> seen;
  for (;;) {
    const int suspect = chain.back();
    const Clue clue = LookInto(suspect, deadline);
    switch (clue.kind) {
      case Clue::Kind::kDied:
        return {suspect, clue.text, absl::StatusCode::kUnavailable};
      case Clue::Kind::kKnows:
        return {clue.blamed < 0 ? std::nullopt : std::optional(clue.blamed),
                clue.text, absl::StatusCode::kInvalidArgument};
      case Clue::Kind::kStopped:
        return {suspect, clue.text, absl::StatusCode::kDeadlineExceeded};
      case Clue::Kind::kLeft:
      case Clue::Kind::kFailed:
        return {suspect, clue.text, std::nullopt};
      case Clue::Kind::kNothing:
        if (seen == absl::StatusCode::kDeadlineExceeded) {
          return {suspect, "did not come in time", seen};
        }
        return {suspect, std::string(symptom), std::nullopt};
      case Clue::Kind::kBlames:
        seen = clue.code;
        break;
    }
    if (clue.blamed == rank_) {
      return {suspect,
              absl::StrCat("gave up waiting for this rank (", clue.text, ")"),
              std::nullopt};
    }
    if (std::find(chain.begin(), chain.end(), clue.blamed) != chain.end()) {
      return {suspect,
              absl::StrCat("and rank ", clue.blamed,
                           " wait for each other: the ranks made different "
                           "calls (",
                           clue.text, ")"),
              std::nullopt};
    }
    chain.push_back(clue.blamed);
  }
}

}  // namespace sherd::internal
