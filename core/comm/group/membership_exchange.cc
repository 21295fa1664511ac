#include "sherd/core/comm/group/membership_exchange.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/group/membership.h"

namespace sherd::internal {
namespace {

constexpr char kSummaryKey[] = "records/summary";
constexpr char kAuto[] = "auto";
constexpr size_t kRecordFields = 8;
constexpr size_t kSummaryFields = 9;
constexpr int kNoRank = -1;

std::string RecordKey(int rank) { return absl::StrCat("records/", rank); }
std::string ReadKey(int rank) { return absl::StrCat("records/read/", rank); }

Deadline Now() { return Deadline::After(absl::ZeroDuration()); }

std::string OneLine(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\n", " "}});
}

std::string Encode(const MemberRecord& record) {
  return absl::StrJoin(
      {absl::StrCat(record.world_size), OneLine(record.backend),
       OneLine(record.shm_obstacle), OneLine(record.host.network),
       OneLine(record.host.machine),
       absl::StrCat(static_cast<int>(record.error.code())),
       OneLine(record.error.message()), OneLine(record.device_backend)},
      "\n");
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(what,
                   " at the rendezvous is not of this version of Sherd, "
                   "or the store serves something else too"));
}

absl::StatusOr<MemberRecord> DecodeRecord(int rank, absl::string_view text) {
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  MemberRecord record;
  record.rank = rank;
  int code;
  if (fields.size() != kRecordFields ||
      !absl::SimpleAtoi(fields[0], &record.world_size) ||
      !absl::SimpleAtoi(fields[5], &code)) {
    return WithRank(Malformed(absl::StrCat("the record of rank ", rank)), rank);
  }
  record.backend = fields[1];
  record.shm_obstacle = fields[2];
  record.host = {fields[3], fields[4]};
  record.error = absl::Status(static_cast<absl::StatusCode>(code), fields[6]);
  record.device_backend = fields[7];
  return record;
}

// `world_size`: as requested by rank 0.
std::string EncodeSummary(const absl::StatusOr<MembershipSummary>& result,
                          int world_size) {
  const MembershipSummary summary = result.ok() ? *result : MembershipSummary();
  const ErrorInfo info = GetErrorInfo(result.status());
  return absl::StrJoin(
      {absl::StrCat(static_cast<int>(result.status().code())),
       absl::StrCat(info.rank.value_or(kNoRank)),
       absl::StrCat(info.failed_rank.value_or(kNoRank)),
       OneLine(result.status().message()), summary.backend,
       OneLine(summary.reason), absl::StrCat(summary.one_network ? 1 : 0),
       absl::StrCat(summary.elsewhere), absl::StrCat(world_size)},
      "\n");
}

absl::Status DecodeError(int code, absl::string_view message, int rank,
                         int failed_rank) {
  ErrorInfo info;
  if (rank != kNoRank) info.rank = rank;
  if (failed_rank != kNoRank) info.failed_rank = failed_rank;
  return WithErrorInfo(
      absl::Status(static_cast<absl::StatusCode>(code), message), info);
}

absl::StatusOr<MembershipSummary> DecodeSummary(absl::string_view text,
                                                const MemberRecord& own) {
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  int code, rank, failed_rank, elsewhere, world_size;
  if (fields.size() != kSummaryFields || !absl::SimpleAtoi(fields[0], &code) ||
      !absl::SimpleAtoi(fields[1], &rank) ||
      !absl::SimpleAtoi(fields[2], &failed_rank) ||
      !absl::SimpleAtoi(fields[7], &elsewhere) ||
      !absl::SimpleAtoi(fields[8], &world_size)) {
    return Malformed("the summary of rank 0");
  }
  if (code != 0) return DecodeError(code, fields[3], rank, failed_rank);
  if (world_size != own.world_size) {
    // A rank that rank 0 did not expect.
    return WithFailedRank(
        absl::InvalidArgumentError(absl::StrCat(
            "world sizes differ: rank ", own.rank, " asked for ",
            own.world_size, ", the ranks 0 to ", world_size - 1, " for ",
            world_size, ": start all ranks with the same one")),
        own.rank);
  }
  MembershipSummary summary;
  summary.backend = fields[4];
  summary.reason = fields[5];
  summary.one_network = fields[6] == "1";
  summary.elsewhere = elsewhere;
  summary.one_host = elsewhere == kNoRank;
  return summary;
}

absl::Status Absent(Store& store, int size) {
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    if (!store.Get(RecordKey(rank), Now()).ok()) missing.push_back(rank);
  }
  if (missing.empty()) {
    return WithFailedRank(
        absl::DeadlineExceededError(
            "all ranks arrived, but rank 0 did not compare them in time"),
        0);
  }
  return DidNotJoin(missing, size);
}

// The error of ranks that differ, or OK. `what` names the compared values.
absl::Status NoDeviation(absl::string_view what, const Deviation& deviation,
                         const std::vector<std::optional<std::string>>& asked) {
  if (!deviation.Exists()) return absl::OkStatus();
  const std::string text = deviation.ToText(
      "asked for", [&](int rank) { return *asked[static_cast<size_t>(rank)]; });
  const absl::Status status = absl::InvalidArgumentError(absl::StrCat(
      what, " differ: ", text, ": start all ranks with the same one"));
  const std::optional<int> failed = deviation.Rank();
  return failed ? WithFailedRank(status, *failed) : status;
}

// As in BackendChoice::text.
std::string Asked(const MemberRecord& record) {
  if (record.device_backend.empty()) return record.backend;
  return absl::StrCat("cpu:", record.backend, ",cuda:", record.device_backend);
}

absl::Status CheckBackends(const std::vector<MemberRecord>& records) {
  std::vector<std::optional<std::string>> asked;
  for (const MemberRecord& record : records) {
    asked.push_back(absl::StrCat("\"", Asked(record), "\""));
  }
  return NoDeviation("backends", FindDeviation(asked), asked);
}

MembershipSummary Decide(const std::vector<MemberRecord>& records) {
  MembershipSummary summary;
  summary.backend = records[0].backend;
  summary.one_network = true;
  const MemberRecord* unable = nullptr;
  for (const MemberRecord& record : records) {
    summary.one_network &= record.host.network == records[0].host.network;
    if (summary.elsewhere == kNoRank && record.host != records[0].host) {
      summary.elsewhere = record.rank;
    }
    if (unable == nullptr && !record.shm_obstacle.empty()) unable = &record;
  }
  summary.one_host = summary.elsewhere == kNoRank;
  if (summary.backend != kAuto) return summary;
  if (!summary.one_host) {
    summary.reason = absl::StrCat("rank ", summary.elsewhere,
                                  " is not on the host of rank 0");
  } else if (unable != nullptr) {
    summary.reason =
        absl::StrCat("on rank ", unable->rank, ": ", unable->shm_obstacle);
  }
  summary.backend = summary.reason.empty() ? "shm" : "gloo";
  return summary;
}

// Waits a while for the records of the ranks from `first` on, so that ranks
// which join a little later find the summary.
void AwaitOthers(Store& store, const MemberRecord& own, int first,
                 Deadline deadline, std::vector<int>& came) {
  const Deadline grace =
      Deadline::Earlier(deadline, Deadline::After(kReadGrace));
  for (int rank = first; rank < own.world_size; ++rank) {
    if (store.Get(RecordKey(rank), grace).ok()) came.push_back(rank);
  }
}

// The error of world sizes that differ, of which `records` has the first. Waits
// a while for the other ranks, which decide who deviates and need to find the
// summary: for as many as the size that most ranks requested.
absl::Status CompareSizes(Store& store,
                          const std::vector<MemberRecord>& records,
                          Deadline deadline, std::vector<int>& came) {
  const Deadline grace =
      Deadline::Earlier(deadline, Deadline::After(kReadGrace));
  std::vector<std::optional<std::string>> asked;
  for (const MemberRecord& record : records) {
    asked.push_back(absl::StrCat(record.world_size));
  }
  for (;;) {
    const Deviation deviation = FindDeviation(asked);
    const int next = static_cast<int>(asked.size());
    const bool expected = std::any_of(
        deviation.parties.begin(), deviation.parties.end(),
        [&](const std::vector<int>& party) {
          int size = 0;
          return party.size() == deviation.parties[0].size() &&
                 absl::SimpleAtoi(*asked[party[0]], &size) && next < size;
        });
    if (!expected) return NoDeviation("world sizes", deviation, asked);
    const absl::StatusOr<std::string> text = store.Get(RecordKey(next), grace);
    const auto record = text.ok() ? DecodeRecord(next, *text)
                                  : absl::StatusOr<MemberRecord>(text.status());
    if (text.ok()) came.push_back(next);
    asked.push_back(record.ok()
                        ? std::optional(absl::StrCat(record->world_size))
                        : std::nullopt);
    // From here on no rank is waited for.
    if (!text.ok() && next >= records[0].world_size) {
      return NoDeviation("world sizes", FindDeviation(asked), asked);
    }
  }
}

// Rank 0's part. `came` receives the ranks whose record was found.
absl::StatusOr<MembershipSummary> Compare(Store& store, const MemberRecord& own,
                                          Deadline deadline,
                                          std::vector<int>& came) {
  if (!own.error.ok()) {
    AwaitOthers(store, own, 1, deadline, came);
    return WithRank(own.error, own.rank);
  }
  std::vector<MemberRecord> records = {own};
  for (int rank = 1; rank < own.world_size; ++rank) {
    const absl::StatusOr<std::string> text =
        store.Get(RecordKey(rank), deadline);
    if (absl::IsDeadlineExceeded(text.status())) {
      return Absent(store, own.world_size);
    }
    SHERD_RETURN_IF_ERROR(text.status());
    came.push_back(rank);
    SHERD_ASSIGN_OR_RETURN(MemberRecord record, DecodeRecord(rank, *text));
    if (!record.error.ok()) {
      AwaitOthers(store, own, rank + 1, deadline, came);
      return WithRank(Annotate(record.error, absl::StrCat("rank ", rank)),
                      rank);
    }
    records.push_back(std::move(record));
    if (records.back().world_size != own.world_size) {
      return CompareSizes(store, records, deadline, came);
    }
  }
  SHERD_RETURN_IF_ERROR(CheckBackends(records));
  MembershipSummary summary = Decide(records);
  if (own.one_host_only && !summary.one_host) {
    return WithRank(absl::FailedPreconditionError(absl::StrCat(
                        "the backend ", summary.backend,
                        " works on one host only, but rank ", summary.elsewhere,
                        " is not on the host of rank 0: use auto or gloo")),
                    summary.elsewhere);
  }
  return summary;
}

absl::StatusOr<MembershipSummary> Lead(Store& store, const MemberRecord& own,
                                       Deadline deadline) {
  std::vector<int> came;
  absl::StatusOr<MembershipSummary> summary =
      Compare(store, own, deadline, came);
  SHERD_RETURN_IF_ERROR(
      store.Set(kSummaryKey, EncodeSummary(summary, own.world_size)));
  if (!summary.ok() && !came.empty()) {
    std::vector<std::string> keys;
    for (int rank : came) keys.push_back(ReadKey(rank));
    store.Wait(keys, Deadline::After(kReadGrace)).IgnoreError();
  }
  return summary;
}

absl::StatusOr<MembershipSummary> Follow(Store& store, const MemberRecord& own,
                                         Deadline deadline) {
  const auto read = [&]() -> absl::StatusOr<MembershipSummary> {
    const absl::StatusOr<std::string> text = store.Get(kSummaryKey, deadline);
    if (absl::IsDeadlineExceeded(text.status())) {
      return Absent(store, own.world_size);
    }
    SHERD_RETURN_IF_ERROR(text.status());
    return DecodeSummary(*text, own);
  };
  absl::StatusOr<MembershipSummary> summary = read();
  if (!summary.ok()) store.Set(ReadKey(own.rank), "").IgnoreError();
  return summary;
}

}  // namespace

absl::StatusOr<MembershipSummary> ExchangeMemberRecords(Store& store,
                                                        const MemberRecord& own,
                                                        Deadline deadline) {
  SHERD_RETURN_IF_ERROR(store.Set(RecordKey(own.rank), Encode(own)));
  if (own.rank == 0) return Lead(store, own, deadline);
  if (!own.error.ok()) {
    store
        .Wait({kSummaryKey},
              Deadline::Earlier(deadline, Deadline::After(kReadGrace)))
        .IgnoreError();
    store.Set(ReadKey(own.rank), "").IgnoreError();
    return WithRank(own.error, own.rank);
  }
  return Follow(store, own, deadline);
}

}  // namespace sherd::internal
