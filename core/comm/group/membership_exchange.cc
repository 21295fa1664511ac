#include "sherd/core/comm/group/membership_exchange.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/bootstrap/meeting_errors.h"
#include "sherd/core/comm/store/watched_store.h"
#include "sherd/core/process/process_identity.h"

namespace sherd::internal {
namespace {

constexpr char kSummaryKey[] = "summary";
// Lines of a summary before the processes.
constexpr int kSummaryFields = 6;
constexpr int kNoRank = -1;

std::string JoinedKey(int rank) { return absl::StrCat("joined/", rank); }
std::string MemberKey(int rank) { return absl::StrCat("member/", rank); }
std::string ReadKey(int rank) { return absl::StrCat("summary/read/", rank); }

Deadline Now() { return Deadline::After(absl::ZeroDuration()); }

// As published by one rank: "SIZE PROCESS\nNOTE".
struct MemberRecord {
  int world_size = 0;
  std::string process;
  std::string note;
};

std::string Encode(const MemberRecord& record) {
  return absl::StrCat(record.world_size, " ", record.process, "\n",
                      record.note);
}

absl::StatusOr<MemberRecord> DecodeRecord(int rank, absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('\n', 1));
  const std::pair<absl::string_view, absl::string_view> fields =
      absl::StrSplit(parts.first, absl::MaxSplits(' ', 1));
  MemberRecord record;
  if (fields.second.empty() ||
      !absl::SimpleAtoi(fields.first, &record.world_size)) {
    return WithRank(NotOfThisVersion(absl::StrCat("the record of rank ", rank)),
                    rank);
  }
  record.process = std::string(fields.second);
  record.note = std::string(parts.second);
  return record;
}

struct Summary {
  std::string settled;
  std::vector<std::string> processes;
};

// `world_size`: as requested by the rank that writes it.
std::string Encode(const absl::StatusOr<Summary>& result, int world_size) {
  const Summary summary = result.ok() ? *result : Summary();
  const ErrorInfo info = GetErrorInfo(result.status());
  std::string text = absl::StrCat(
      world_size, "\n", static_cast<int>(result.status().code()), "\n",
      info.rank.value_or(kNoRank), "\n", info.failed_rank.value_or(kNoRank),
      "\n", absl::CEscape(result.status().message()), "\n",
      absl::CEscape(summary.settled));
  for (const std::string& process : summary.processes) {
    absl::StrAppend(&text, "\n", process);
  }
  return text;
}

// A rank that a group of `size` does not have, as where world sizes differ,
// stands in the message alone.
absl::Status ErrorOf(int code, absl::string_view message, int rank,
                     int failed_rank, int size) {
  ErrorInfo info;
  if (rank >= 0 && rank < size) info.rank = rank;
  if (failed_rank >= 0 && failed_rank < size) info.failed_rank = failed_rank;
  return WithErrorInfo(
      absl::Status(static_cast<absl::StatusCode>(code), message), info);
}

// The summary for `rank`, which requested `size`.
absl::StatusOr<Summary> DecodeSummary(absl::string_view text, int rank,
                                      int size) {
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  int world_size, code, error_rank, failed_rank;
  std::string message;
  Summary summary;
  if (fields.size() < kSummaryFields ||
      !absl::SimpleAtoi(fields[0], &world_size) ||
      !absl::SimpleAtoi(fields[1], &code) ||
      !absl::SimpleAtoi(fields[2], &error_rank) ||
      !absl::SimpleAtoi(fields[3], &failed_rank) ||
      !absl::CUnescape(fields[4], &message) ||
      !absl::CUnescape(fields[5], &summary.settled)) {
    return NotOfThisVersion("the summary of rank 0");
  }
  if (code != 0) return ErrorOf(code, message, error_rank, failed_rank, size);
  summary.processes.assign(fields.begin() + kSummaryFields, fields.end());
  if (static_cast<int64_t>(summary.processes.size()) != world_size) {
    return NotOfThisVersion("the summary of rank 0");
  }
  if (world_size == size) return summary;
  // A rank that rank 0 did not expect.
  return WithFailedRank(absl::InvalidArgumentError(absl::StrCat(
                            "world sizes differ: rank ", rank, " asked for ",
                            size, ", the ranks 0 to ", world_size - 1, " for ",
                            world_size, ": start all ranks with the same one")),
                        rank);
}

// One rank's part in the exchange.
class Exchange {
 public:
  Exchange(Store& store, absl::Span<const std::string> expected,
           Deadline deadline, const Membership& membership,
           const MemberOffer& offer)
      : store_(store),
        watched_(store, [this] { return FindObstacle(); }),
        expected_(expected),
        deadline_(deadline),
        rank_(membership.rank()),
        size_(membership.size()),
        offer_(offer),
        known_ranks_(size_) {}

  absl::StatusOr<Summary> Run();

 private:
  // Steps of Run().
  absl::Status Claim();
  absl::StatusOr<Summary> Refuse();
  absl::StatusOr<Summary> Lead();
  absl::StatusOr<Summary> Follow();

  // Rank 0's: the summary of all records. The second has the records up to the
  // first with another world size; it waits a while for the other ranks, which
  // decide who deviates: for as many as the size that most ranks requested.
  absl::StatusOr<Summary> Compare();
  absl::Status CompareSizes(const std::vector<MemberRecord>& records);

  // Writes `found`, unless there is a summary, and returns the one that counts.
  absl::StatusOr<Summary> Conclude(const absl::StatusOr<Summary>& found);
  // The summary in `text`. Confirms that this rank has read an error.
  absl::StatusOr<Summary> Accept(absl::string_view text);
  // Gives the ranks that joined time to read the error.
  void AwaitReaders();

  // The value of `key` once there is one, or why there will be none.
  absl::StatusOr<std::string> Await(const std::string& key);
  // The rank for which not all can join, or, as rank 0, this one if that was
  // found by another; sets obstacle_. None if that is not known.
  std::optional<int> FindObstacle();
  // The error of ranks that are missing at the deadline, or of the store.
  absl::Status Late() const;
  bool Has(const std::string& key) const {
    return store_.Contains(key).value_or(false);
  }
  // `key_of` each rank that may have joined.
  std::vector<std::string> Keys(std::string key_of(int rank)) const;
  // That of rank 0, if it is there.
  absl::StatusOr<MemberRecord> FirstRecord() const;
  // Whether rank 0 does not expect this rank.
  bool IsSurplus() const;

  Store& store_;
  WatchedStore watched_;
  const absl::Span<const std::string> expected_;
  const Deadline deadline_;
  const int rank_;
  const int size_;
  const MemberOffer& offer_;
  // Ranks from here on have not been heard of.
  int known_ranks_;
  absl::Status obstacle_;
};

absl::StatusOr<Summary> Exchange::Run() {
  SHERD_RETURN_IF_ERROR(Claim());
  // Not published as a member, so that rank 0 cannot continue with it.
  if (!offer_.error.ok()) return Refuse();
  SHERD_RETURN_IF_ERROR(store_.Set(
      MemberKey(rank_),
      Encode(MemberRecord{size_, DescribeOwnProcess(), offer_.note})));
  return rank_ == 0 ? Lead() : Follow();
}

absl::Status Exchange::Claim() {
  SHERD_ASSIGN_OR_RETURN(const int64_t joined, store_.Add(JoinedKey(rank_), 1));
  if (joined == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "rank ", rank_,
      " has joined already: two processes have the same rank, or the "
      "rendezvous is left over from another run and must be removed"));
}

absl::StatusOr<Summary> Exchange::Refuse() {
  const absl::Status error = WithRank(offer_.error, rank_);
  store_
      .Wait(Keys(JoinedKey),
            Deadline::Earlier(deadline_, Deadline::After(kReadGrace)))
      .IgnoreError();
  // Checked afterwards: rank 0 may join meanwhile.
  if (IsSurplus()) return error;
  Conclude(rank_ == 0 ? error : Annotate(error, absl::StrCat("rank ", rank_)))
      .IgnoreError();
  AwaitReaders();
  return error;
}

absl::StatusOr<Summary> Exchange::Lead() {
  const absl::StatusOr<Summary> found = Compare();
  absl::StatusOr<Summary> summary = Conclude(found);
  // Other ranks write errors alone.
  if (!found.ok() && summary.ok()) {
    return NotOfThisVersion("the summary of rank 0");
  }
  if (!summary.ok()) AwaitReaders();
  return summary;
}

absl::StatusOr<Summary> Exchange::Follow() {
  const absl::StatusOr<std::string> text = Await(kSummaryKey);
  if (!text.ok()) {
    return IsSurplus() ? absl::StatusOr<Summary>(text.status())
                       : Conclude(text.status());
  }
  return Accept(*text);
}

absl::StatusOr<Summary> Exchange::Compare() {
  std::vector<MemberRecord> records = {
      {size_, DescribeOwnProcess(), offer_.note}};
  for (int rank = 1; rank < size_; ++rank) {
    SHERD_ASSIGN_OR_RETURN(const std::string text, Await(MemberKey(rank)));
    SHERD_ASSIGN_OR_RETURN(MemberRecord record, DecodeRecord(rank, text));
    records.push_back(std::move(record));
    if (records.back().world_size != size_) return CompareSizes(records);
  }
  Summary summary;
  std::vector<std::string> notes;
  for (MemberRecord& record : records) {
    summary.processes.push_back(std::move(record.process));
    notes.push_back(std::move(record.note));
  }
  if (offer_.settle) {
    SHERD_ASSIGN_OR_RETURN(summary.settled, offer_.settle(notes));
  }
  return summary;
}

absl::Status Exchange::CompareSizes(const std::vector<MemberRecord>& records) {
  const Deadline grace =
      Deadline::Earlier(deadline_, Deadline::After(kReadGrace));
  std::vector<std::optional<std::string>> asked;
  for (const MemberRecord& record : records) {
    asked.push_back(absl::StrCat(record.world_size));
  }
  for (bool came = true;;) {
    const Deviation deviation = FindDeviation(asked);
    const int next = static_cast<int>(asked.size());
    const bool expected = std::any_of(
        deviation.parties.begin(), deviation.parties.end(),
        [&](const std::vector<int>& party) {
          int size = 0;
          return party.size() == deviation.parties[0].size() &&
                 absl::SimpleAtoi(*asked[party[0]], &size) && next < size;
        });
    known_ranks_ = std::max(known_ranks_, next);
    // Beyond its own world size, this rank waits for no more than one.
    if (!expected || (!came && next > size_)) {
      return CheckEqual("world sizes", asked);
    }
    const absl::StatusOr<std::string> text = store_.Get(MemberKey(next), grace);
    came = text.ok();
    const auto record = came ? DecodeRecord(next, *text)
                             : absl::StatusOr<MemberRecord>(text.status());
    asked.push_back(record.ok()
                        ? std::optional(absl::StrCat(record->world_size))
                        : std::nullopt);
  }
}

absl::StatusOr<Summary> Exchange::Conclude(
    const absl::StatusOr<Summary>& found) {
  const absl::StatusOr<std::string> text =
      store_.CompareSet(kSummaryKey, "", Encode(found, size_));
  if (text.ok()) return Accept(*text);
  return found.ok() ? text.status() : found.status();
}

absl::StatusOr<Summary> Exchange::Accept(absl::string_view text) {
  absl::StatusOr<Summary> summary = DecodeSummary(text, rank_, size_);
  if (!summary.ok()) store_.Set(ReadKey(rank_), "").IgnoreError();
  return summary;
}

void Exchange::AwaitReaders() {
  std::vector<std::string> keys = Keys(ReadKey);
  if (!store_.Wait(Keys(JoinedKey), Now()).ok()) {
    keys.clear();
    for (int rank = 0; rank < known_ranks_; ++rank) {
      const absl::StatusOr<bool> joined = store_.Contains(JoinedKey(rank));
      // Each operation on a store that does not answer takes its time.
      if (!joined.ok()) return;
      if (*joined) keys.push_back(ReadKey(rank));
    }
  }
  store_.Wait(keys, Deadline::After(kReadGrace)).IgnoreError();
}

std::vector<std::string> Exchange::Keys(std::string key_of(int rank)) const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < known_ranks_; ++rank) keys.push_back(key_of(rank));
  return keys;
}

absl::StatusOr<std::string> Exchange::Await(const std::string& key) {
  absl::StatusOr<std::string> value = watched_.Get(key, deadline_);
  if (value.ok()) return value;
  if (!obstacle_.ok()) return obstacle_;
  return absl::IsDeadlineExceeded(value.status()) ? Late() : value.status();
}

std::optional<int> Exchange::FindObstacle() {
  if (rank_ == 0 && Has(kSummaryKey)) {
    obstacle_ = absl::CancelledError("another rank wrote the summary");
    return rank_;
  }
  std::vector<std::string> processes(expected_.begin(), expected_.end());
  if (processes.empty()) {
    const absl::StatusOr<MemberRecord> first = FirstRecord();
    if (first.ok()) processes.push_back(first->process);
  }
  for (int rank = 0; rank < static_cast<int>(processes.size()); ++rank) {
    const std::string& process = processes[rank];
    if (rank == rank_ || StateOf(process) != ProcessState::kEnded) continue;
    // Checked afterwards: a rank joins before its process ends.
    const bool joined = Has(MemberKey(rank));
    if (joined && rank != 0) continue;
    obstacle_ = WithFailedRank(
        absl::UnavailableError(absl::StrCat(
            "rank ", rank, " died (process ", ProcessNumber(process),
            " has ended) before it ",
            joined ? "compared what the ranks asked for" : "joined")),
        rank);
    return rank;
  }
  return std::nullopt;
}

absl::Status Exchange::Late() const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    SHERD_ASSIGN_OR_RETURN(const bool joined, store_.Contains(MemberKey(rank)));
    if (!joined) missing.push_back(rank);
  }
  if (missing.empty()) {
    return WithFailedRank(
        absl::DeadlineExceededError(
            "all ranks arrived, but rank 0 did not compare them in time"),
        0);
  }
  return WithFailedRank(
      absl::DeadlineExceededError(
          absl::StrCat(RankList(missing), " of ", size_,
                       " did not join in time: were all of them started, with "
                       "the same rendezvous and secret?")),
      missing.front());
}

absl::StatusOr<MemberRecord> Exchange::FirstRecord() const {
  SHERD_ASSIGN_OR_RETURN(const std::string text,
                         store_.Get(MemberKey(0), Now()));
  return DecodeRecord(0, text);
}

bool Exchange::IsSurplus() const {
  if (rank_ == 0) return false;
  const absl::StatusOr<MemberRecord> record = FirstRecord();
  return record.ok() && record->world_size <= rank_;
}

}  // namespace

absl::StatusOr<std::string> ExchangeMembership(
    Store& store, absl::Span<const std::string> expected, Deadline deadline,
    Membership& membership, const MemberOffer& offer) {
  SHERD_ASSIGN_OR_RETURN(
      Summary summary,
      Exchange(store, expected, deadline, membership, offer).Run());
  membership.SetProcesses(std::move(summary.processes));
  return std::move(summary.settled);
}

absl::StatusOr<std::vector<std::string>> ReadNotes(Store& store, int size,
                                                   Deadline deadline) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(MemberKey(rank));
  absl::StatusOr<std::vector<std::string>> texts =
      store.MultiGet(keys, deadline);
  if (absl::IsResourceExhausted(texts.status())) {
    texts = std::vector<std::string>();
    for (const std::string& key : keys) {
      SHERD_ASSIGN_OR_RETURN(std::string text, store.Get(key, deadline));
      texts->push_back(std::move(text));
    }
  }
  SHERD_RETURN_IF_ERROR(texts.status());
  std::vector<std::string> notes;
  for (int rank = 0; rank < size; ++rank) {
    SHERD_ASSIGN_OR_RETURN(MemberRecord record,
                           DecodeRecord(rank, (*texts)[rank]));
    notes.push_back(std::move(record.note));
  }
  return notes;
}

}  // namespace sherd::internal
