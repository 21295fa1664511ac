#include "sherd/core/comm/collective/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement_scope.h"
#include "sherd/core/comm/object_collectives.h"

namespace sherd {
namespace {

using internal::AgreementScope;

enum class Stage : int32_t {
  kEnd,
  // The rank is still in a long step; the vote counts only as a sign of life.
  kInStep,
  // The error is the rank's last word; see AgreementScope.
  kLastWord,
};

// A rank's message in the first round. All ranks run the same build, so the
// struct is sent as it is in memory.
struct Vote {
  int32_t code;
  // As in ErrorInfo; kNoRank if unset.
  int32_t rank;
  int32_t failed_rank;
  Stage stage;
  uint64_t fingerprint;
  uint64_t number;
};
static_assert(sizeof(Vote) == 32);

constexpr int32_t kNoRank = -1;
constexpr size_t kMaxErrorBytes = 4096;
constexpr size_t kMaxValueBytes = 65536;
// Of a value in a message.
constexpr size_t kMaxShownBytes = 240;
// Up to here no memory is allocated.
constexpr size_t kInlineVotes = 16;
constexpr size_t kInlineNotes = 4096;

template <typename T>
ConstBytes BytesOf(const T& value) {
  return ConstBytes(reinterpret_cast<const std::byte*>(&value), sizeof(T));
}

template <typename T>
MutableBytes BytesOf(std::vector<T>& values) {
  return MutableBytes(reinterpret_cast<std::byte*>(values.data()),
                      values.size() * sizeof(T));
}

// The text of `rank`, from that rank to all.
absl::StatusOr<std::string> ShareText(ProcessGroup& group,
                                      const OperationLabel& what, int rank,
                                      absl::string_view own, size_t max_bytes,
                                      const CollectiveOptions& options) {
  return InOperation(what, BroadcastString(group, own.substr(0, max_bytes),
                                           rank, {.timeout = options.timeout}));
}

Vote VoteOf(const ProcessGroup& group, const absl::Status& local,
            uint64_t fingerprint, uint64_t number) {
  Vote vote = {.code = static_cast<int32_t>(local.code()),
               .rank = group.rank(),
               .failed_rank = kNoRank,
               .stage = Stage::kEnd,
               .fingerprint = fingerprint,
               .number = number};
  if (local.ok()) return vote;
  const ErrorInfo info = GetErrorInfo(local);
  vote.rank = info.rank.value_or(group.rank());
  vote.failed_rank = info.failed_rank.value_or(kNoRank);
  return vote;
}

ErrorInfo InfoOf(const ProcessGroup& group, const OperationLabel& what) {
  ErrorInfo info;
  info.group = group.name();
  info.operation = std::string(what.name);
  return info;
}

// `line` around the byte at `at`, if it is too long to be shown.
std::string Excerpt(absl::string_view line, size_t at) {
  constexpr size_t kBefore = 80;
  const auto is_inside_character = [line](size_t i) {
    return i < line.size() && (static_cast<unsigned char>(line[i]) >> 6) == 2;
  };
  size_t begin =
      at > kBefore && line.size() > kMaxShownBytes ? at - kBefore : 0;
  size_t end = std::min(line.size(), begin + kMaxShownBytes);
  while (begin > 0 && is_inside_character(begin)) --begin;
  while (is_inside_character(end)) ++end;
  return absl::StrCat(begin > 0 ? "…" : "", line.substr(begin, end - begin),
                      end < line.size() ? "…" : "");
}

// Leaves of two descriptions what an error shows of them: the first line in
// which they differ.
void KeepDifference(std::string& a, std::string& b) {
  if (a == b) {
    a = b = "a value with the same description";
    return;
  }
  const auto differ = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  const size_t at = static_cast<size_t>(differ.first - a.begin());
  const size_t before = at == 0 ? a.npos : a.rfind('\n', at - 1);
  const size_t begin = before == a.npos ? 0 : before + 1;
  for (std::string* text : {&a, &b}) {
    const absl::string_view rest = absl::string_view(*text).substr(begin);
    const absl::string_view line = rest.substr(0, rest.find('\n'));
    *text = line.empty() ? "nothing" : Excerpt(line, at - begin);
  }
}

absl::Status ShareFailure(ProcessGroup& group, const OperationLabel& what,
                          const absl::Status& local, const Vote& failed,
                          int rank, const CollectiveOptions& options) {
  // A last word tells where it was said: the others are in other calls.
  const std::string own =
      absl::StrCat(what.text, ": rank ", group.rank(), ": ", local.message());
  const bool is_last = failed.stage == Stage::kLastWord;
  SHERD_ASSIGN_OR_RETURN(
      const std::string cause,
      ShareText(group, what, rank, is_last ? own : local.message(),
                kMaxErrorBytes, options));
  ErrorInfo info = InfoOf(group, what);
  info.rank = failed.rank;
  if (failed.failed_rank != kNoRank) info.failed_rank = failed.failed_rank;
  absl::Status status = WithErrorInfo(
      absl::Status(static_cast<absl::StatusCode>(failed.code),
                   is_last
                       ? cause
                       : absl::StrCat(what.text, ": rank ", rank, ": ", cause)),
      info);
  if (is_last) AgreementScope::Record(group, status);
  return status;
}

using Votes = absl::InlinedVector<Vote, kInlineVotes>;

// Makes room for a vote of each rank.
MutableBytes SpaceForVotes(const ProcessGroup& group, Votes& votes) {
  votes.resize(static_cast<size_t>(group.size()));
  return MutableBytes(reinterpret_cast<std::byte*>(votes.data()),
                      votes.size() * sizeof(Vote));
}

bool AnyAt(Stage stage, absl::Span<const Vote> votes) {
  return std::any_of(votes.begin(), votes.end(),
                     [stage](const Vote& v) { return v.stage == stage; });
}

// The vote that decides, if any has failed. A last word goes before others: its
// rank takes part in nothing more.
absl::Span<const Vote>::iterator FirstFailed(absl::Span<const Vote> votes) {
  const bool any_last = AnyAt(Stage::kLastWord, votes);
  return std::find_if(votes.begin(), votes.end(), [any_last](const Vote& v) {
    return any_last ? v.stage == Stage::kLastWord : v.code != 0;
  });
}

uint64_t Maximum(const Votes& votes) {
  return std::max_element(
             votes.begin(), votes.end(),
             [](const Vote& a, const Vote& b) { return a.number < b.number; })
      ->number;
}

// Evaluates the votes of all ranks. `local` and `value` are this rank's vote.
absl::Status Judge(ProcessGroup& group, const OperationLabel& what,
                   const absl::Status& local, const AgreedValue& value,
                   absl::Span<const Vote> votes,
                   const CollectiveOptions& options) {
  const auto failed = FirstFailed(votes);
  if (failed != votes.end()) {
    return ShareFailure(group, what, local, *failed,
                        static_cast<int>(failed - votes.begin()), options);
  }
  if (std::all_of(votes.begin(), votes.end(), [&](const Vote& v) {
        return v.fingerprint == votes[0].fingerprint;
      })) {
    return absl::OkStatus();
  }
  std::vector<std::optional<uint64_t>> values;
  for (const Vote& vote : votes) values.push_back(vote.fingerprint);
  return CompareValues(group, what, "was called with other arguments", values,
                       value.describe, options);
}

// One round of votes.
absl::StatusOr<uint64_t> TakeVote(ProcessGroup& group,
                                  const OperationLabel& what,
                                  const absl::Status& local,
                                  const AgreedValue& value, uint64_t number,
                                  Stage stage,
                                  const CollectiveOptions& options) {
  SHERD_RETURN_IF_ERROR(AgreementScope::FailureOf(group));
  Vote mine = VoteOf(group, local, value.fingerprint, number);
  if (!local.ok()) mine.stage = stage;
  Votes votes;
  SHERD_RETURN_IF_ERROR(InOperation(
      what,
      group.AllGather(BytesOf(mine), SpaceForVotes(group, votes), options)));
  SHERD_RETURN_IF_ERROR(Judge(group, what, local, value, votes, options));
  return Maximum(votes);
}

// Of the notes that travel with votes.
size_t NoteBytesIn(const ProcessGroup& group, size_t note_bytes) {
  return AgreementScope::Covers(group) ? 0 : note_bytes;
}

// After votes without them.
absl::Status GatherNotes(ProcessGroup& group, const OperationLabel& what,
                         ConstBytes note, MutableBytes notes,
                         const CollectiveOptions& options) {
  if (note.empty()) return absl::OkStatus();
  return InOperation(what, group.AllGather(note, notes, options));
}

}  // namespace

namespace internal {

// The votes of all ranks, each with a note behind it, as they are exchanged.
struct Ballots {
  Ballots(const ProcessGroup& group, size_t note_bytes)
      // A process that is not a member learns so from the collective.
      : rank(static_cast<size_t>(std::max(group.rank(), 0))),
        ranks(static_cast<size_t>(group.size())),
        block(sizeof(Vote) + note_bytes),
        all(ranks * block) {}

  void SetOwn(const Vote& vote, ConstBytes note) {
    std::memcpy(&all[rank * block], &vote, sizeof(Vote));
    if (note.empty()) return;
    std::memcpy(&all[rank * block + sizeof(Vote)], note.data(), note.size());
  }
  // In place: this rank's block is sent from where it is received.
  ConstBytes own() const { return ConstBytes(&all[rank * block], block); }

  Votes votes() const {
    Votes result(ranks);
    for (size_t r = 0; r < ranks; ++r) {
      std::memcpy(&result[r], &all[r * block], sizeof(Vote));
    }
    return result;
  }
  void CopyNotes(MutableBytes notes) const {
    const size_t note = block - sizeof(Vote);
    for (size_t r = 0; note != 0 && r < ranks; ++r) {
      std::memcpy(&notes[r * note], &all[r * block + sizeof(Vote)], note);
    }
  }

  const size_t rank;
  const size_t ranks;
  const size_t block;
  absl::InlinedVector<std::byte, kInlineNotes> all;
};

}  // namespace internal

using internal::Ballots;

absl::Status CompareValues(ProcessGroup& group, const OperationLabel& what,
                           absl::string_view complaint,
                           const std::vector<std::optional<uint64_t>>& values,
                           absl::FunctionRef<std::string()> describe,
                           const CollectiveOptions& options) {
  internal::Deviation deviation = internal::FindDeviation(values);
  if (!deviation.Exists()) return absl::OkStatus();
  const std::optional<int> failed = deviation.Rank();
  // Shown are the largest party and that of the rank that is named.
  std::vector<std::vector<int>>& parties = deviation.parties;
  const size_t others = parties.size() - 2;
  for (size_t p = 2; failed && p < parties.size(); ++p) {
    if (parties[p].front() == *failed) std::swap(parties[1], parties[p]);
  }
  parties.resize(2);
  std::array<std::string, 2> texts;
  for (size_t p = 0; p < texts.size(); ++p) {
    const int teller = parties[p].front();
    SHERD_ASSIGN_OR_RETURN(
        texts[p], ShareText(group, what, teller,
                            teller == group.rank() ? describe() : std::string(),
                            kMaxValueBytes, options));
  }
  KeepDifference(texts[0], texts[1]);
  const std::string shown = deviation.ToText("passed", [&](int rank) {
    return texts[rank == parties[0].front() ? 0 : 1];
  });
  absl::Status status = WithErrorInfo(
      absl::InvalidArgumentError(absl::StrCat(
          what.text, ": ", failed ? absl::StrCat("rank ", *failed) : "a rank",
          " ", complaint, ": ", shown,
          others == 0 ? "" : "; others passed something else again",
          "; every rank must pass the same")),
      InfoOf(group, what));
  return failed ? WithFailedRank(std::move(status), *failed) : status;
}

absl::Status Agree(ProcessGroup& group, const OperationLabel& what,
                   const absl::Status& local, const AgreedValue& value,
                   const CollectiveOptions& options) {
  return AgreeOnMaximum(group, what, local, value, 0, options).status();
}

absl::StatusOr<uint64_t> AgreeOnMaximum(ProcessGroup& group,
                                        const OperationLabel& what,
                                        const absl::Status& local,
                                        const AgreedValue& value,
                                        uint64_t number,
                                        const CollectiveOptions& options) {
  return TakeVote(group, what, local, value, number, Stage::kEnd, options);
}

absl::StatusOr<uint64_t> internal::AgreeLast(ProcessGroup& group,
                                             const OperationLabel& what,
                                             const absl::Status& local,
                                             const AgreedValue& value,
                                             uint64_t number) {
  return TakeVote(group, what, local, value, number, Stage::kLastWord, {});
}

// The buffers outlive the LongStep if it ends before the round does.
struct LongStep::Round {
  Round(const ProcessGroup& group, size_t note_bytes)
      : ballots(
            std::make_shared<Ballots>(group, NoteBytesIn(group, note_bytes))) {}

  std::shared_ptr<Ballots> ballots;
  Work work{absl::OkStatus()};
};

LongStep::LongStep(ProcessGroup& group, const OperationLabel& what,
                   const LongStepOptions& options)
    : group_(group),
      what_(what),
      note_bytes_(options.note_bytes),
      next_round_(Deadline::Infinite()),
      failure_(AgreementScope::FailureOf(group)) {
  const absl::Duration timeout = options.timeout.value_or(group.timeout());
  interval_ = options.interval.value_or(
      std::min(timeout / 8,
               std::max(absl::Seconds(1), absl::Milliseconds(group.size()))));
  // A rank that makes progress in time votes up to one interval after that.
  options_.timeout = timeout + interval_;
  if (group.size() > 1) next_round_ = Deadline::After(interval_);
}

LongStep::~LongStep() = default;

absl::Status LongStep::MadeProgress() {
  if (round_ != nullptr && round_->work.Test()) failure_.Update(EndRound());
  SHERD_RETURN_IF_ERROR(failure_);
  // Also once another rank has failed: what this one does may take a while yet.
  if (round_ == nullptr && next_round_.HasPassed()) BeginRound();
  if (!failed_.has_value()) return absl::OkStatus();
  return absl::CancelledError(
      absl::StrCat(what_.text, ": rank ", *failed_,
                   " has failed, and the rest of this step is in vain"));
}

void LongStep::BeginRound() {
  next_round_ = Deadline::After(interval_);
  round_ = std::make_unique<Round>(group_, note_bytes_);
  Ballots& ballots = *round_->ballots;
  Vote vote = VoteOf(group_, absl::OkStatus(), 0, 0);
  vote.stage = Stage::kInStep;
  ballots.SetOwn(vote, {});
  round_->work = group_.AllGatherAsync(ballots.own(),
                                       absl::MakeSpan(ballots.all), options_);
  round_->work.Keep(round_->ballots);
}

absl::Status LongStep::EndRound() {
  const std::unique_ptr<Round> round = std::move(round_);
  SHERD_RETURN_IF_ERROR(InOperation(what_, round->work.Wait()));
  const Votes votes = round->ballots->votes();
  if (AnyAt(Stage::kLastWord, votes)) {
    return Judge(group_, what_, absl::OkStatus(), {}, votes, options_);
  }
  const auto failed = FirstFailed(votes);
  if (failed != votes.end()) {
    failed_ = static_cast<int>(failed - votes.begin());
  }
  return absl::OkStatus();
}

absl::Status LongStep::OwnStatus(const absl::Status& local) const {
  return failed_.has_value() ? absl::OkStatus() : local;
}

absl::Status LongStep::VoteUntilAllEnd(Ballots& ballots) {
  if (round_ != nullptr) failure_.Update(EndRound());
  SHERD_RETURN_IF_ERROR(failure_);
  Votes votes;
  do {
    SHERD_RETURN_IF_ERROR(InOperation(
        what_, group_.AllGather(ballots.own(), absl::MakeSpan(ballots.all),
                                options_)));
    votes = ballots.votes();
  } while (AnyAt(Stage::kInStep, votes) && !AnyAt(Stage::kLastWord, votes));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> LongStep::AgreeOnMaximum(const absl::Status& local,
                                                  const AgreedValue& value,
                                                  uint64_t number) {
  SHERD_CHECK(note_bytes_ == 0) << "AgreeAndGather ends this step";
  Ballots ballots(group_, 0);
  ballots.SetOwn(VoteOf(group_, OwnStatus(local), value.fingerprint, number),
                 {});
  SHERD_RETURN_IF_ERROR(VoteUntilAllEnd(ballots));
  const Votes votes = ballots.votes();
  SHERD_RETURN_IF_ERROR(Judge(group_, what_, local, value, votes, options_));
  return Maximum(votes);
}

absl::Status LongStep::Agree(const absl::Status& local,
                             const AgreedValue& value) {
  return AgreeOnMaximum(local, value, 0).status();
}

absl::Status LongStep::AgreeAndGather(const absl::Status& local,
                                      const AgreedValue& value, ConstBytes note,
                                      MutableBytes notes) {
  SHERD_CHECK(note.size() == note_bytes_);
  SHERD_CHECK(notes.size() == static_cast<size_t>(group_.size()) * note.size());
  const size_t with_votes = NoteBytesIn(group_, note_bytes_);
  Ballots ballots(group_, with_votes);
  ballots.SetOwn(VoteOf(group_, OwnStatus(local), value.fingerprint, 0),
                 note.first(with_votes));
  SHERD_RETURN_IF_ERROR(VoteUntilAllEnd(ballots));
  ballots.CopyNotes(notes);
  SHERD_RETURN_IF_ERROR(
      Judge(group_, what_, local, value, ballots.votes(), options_));
  return with_votes == note_bytes_
             ? absl::OkStatus()
             : GatherNotes(group_, what_, note, notes, options_);
}

absl::Status AgreeAndGather(ProcessGroup& group, const OperationLabel& what,
                            const absl::Status& local, const AgreedValue& value,
                            ConstBytes note, MutableBytes notes,
                            const CollectiveOptions& options) {
  SHERD_CHECK(notes.size() == static_cast<size_t>(group.size()) * note.size());
  if (AgreementScope::Covers(group)) {
    SHERD_RETURN_IF_ERROR(Agree(group, what, local, value, options));
    return GatherNotes(group, what, note, notes, options);
  }
  Ballots ballots(group, note.size());
  ballots.SetOwn(VoteOf(group, local, value.fingerprint, 0), note);
  SHERD_RETURN_IF_ERROR(InOperation(
      what,
      group.AllGather(ballots.own(), absl::MakeSpan(ballots.all), options)));
  ballots.CopyNotes(notes);
  return Judge(group, what, local, value, ballots.votes(), options);
}

absl::StatusOr<std::vector<std::string>> AllGatherStrings(
    ProcessGroup& group, absl::string_view local,
    const CollectiveOptions& options, int64_t max_total_bytes) {
  const uint64_t own_size = local.size();
  std::vector<uint64_t> sizes(group.size());
  SHERD_RETURN_IF_ERROR(
      group.AllGather(BytesOf(own_size), BytesOf(sizes), options));
  uint64_t total = 0;
  for (const uint64_t size : sizes) {
    total = CheckedAdd(total, size).value_or(UINT64_MAX);
  }
  if (total > static_cast<uint64_t>(max_total_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the ranks gather ", total, " bytes, expected at most ",
                     max_total_bytes));
  }
  std::vector<std::string> strings;
  std::vector<ConstBytes> sends;
  std::vector<MutableBytes> recvs;
  strings.reserve(sizes.size());
  for (const uint64_t size : sizes) {
    strings.emplace_back(size, '\0');
    sends.emplace_back(reinterpret_cast<const std::byte*>(local.data()),
                       local.size());
    recvs.emplace_back(reinterpret_cast<std::byte*>(strings.back().data()),
                       size);
  }
  SHERD_RETURN_IF_ERROR(group.AllToAllV(sends, recvs, options));
  return strings;
}

}  // namespace sherd
