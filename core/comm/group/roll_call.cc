#include "sherd/core/comm/group/roll_call.h"

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

namespace sherd::internal {
namespace {

constexpr char kVerdictKey[] = "roll/verdict";
constexpr char kAuto[] = "auto";
constexpr size_t kEntryFields = 8;
constexpr size_t kVerdictFields = 9;
constexpr int kNobody = -1;

std::string EntryKey(int rank) { return absl::StrCat("roll/", rank); }
std::string ReadKey(int rank) { return absl::StrCat("roll/read/", rank); }

Deadline Now() { return Deadline::After(absl::ZeroDuration()); }

std::string OneLine(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\n", " "}});
}

std::string Encode(const RollEntry& entry) {
  return absl::StrJoin(
      {absl::StrCat(entry.world_size), OneLine(entry.backend),
       OneLine(entry.shm_obstacle), OneLine(entry.host.network),
       OneLine(entry.host.machine),
       absl::StrCat(static_cast<int>(entry.error.code())),
       OneLine(entry.error.message()), OneLine(entry.device_backend)},
      "\n");
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(what,
                   " at the rendezvous is not of this version of Sherd, "
                   "or the store serves something else too"));
}

absl::StatusOr<RollEntry> DecodeEntry(int rank, absl::string_view text) {
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  RollEntry entry;
  entry.rank = rank;
  int code;
  if (fields.size() != kEntryFields ||
      !absl::SimpleAtoi(fields[0], &entry.world_size) ||
      !absl::SimpleAtoi(fields[5], &code)) {
    return WithRank(Malformed(absl::StrCat("the entry of rank ", rank)), rank);
  }
  entry.backend = fields[1];
  entry.shm_obstacle = fields[2];
  entry.host = {fields[3], fields[4]};
  entry.error = absl::Status(static_cast<absl::StatusCode>(code), fields[6]);
  entry.device_backend = fields[7];
  return entry;
}

// `world_size`: as requested by rank 0.
std::string EncodeVerdict(const absl::StatusOr<RollCall>& verdict,
                          int world_size) {
  const RollCall call = verdict.ok() ? *verdict : RollCall();
  const ErrorInfo info = GetErrorInfo(verdict.status());
  return absl::StrJoin(
      {absl::StrCat(static_cast<int>(verdict.status().code())),
       absl::StrCat(info.rank.value_or(kNobody)),
       absl::StrCat(info.failed_rank.value_or(kNobody)),
       OneLine(verdict.status().message()), call.backend, OneLine(call.reason),
       absl::StrCat(call.one_network ? 1 : 0), absl::StrCat(call.elsewhere),
       absl::StrCat(world_size)},
      "\n");
}

absl::Status DecodeError(int code, absl::string_view message, int rank,
                         int failed_rank) {
  ErrorInfo info;
  if (rank != kNobody) info.rank = rank;
  if (failed_rank != kNobody) info.failed_rank = failed_rank;
  return WithErrorInfo(
      absl::Status(static_cast<absl::StatusCode>(code), message), info);
}

absl::StatusOr<RollCall> DecodeVerdict(absl::string_view text,
                                       const RollEntry& own) {
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  int code, rank, failed_rank, elsewhere, world_size;
  if (fields.size() != kVerdictFields || !absl::SimpleAtoi(fields[0], &code) ||
      !absl::SimpleAtoi(fields[1], &rank) ||
      !absl::SimpleAtoi(fields[2], &failed_rank) ||
      !absl::SimpleAtoi(fields[7], &elsewhere) ||
      !absl::SimpleAtoi(fields[8], &world_size)) {
    return Malformed("the verdict of rank 0");
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
  RollCall call;
  call.backend = fields[4];
  call.reason = fields[5];
  call.one_network = fields[6] == "1";
  call.elsewhere = elsewhere;
  call.one_host = elsewhere == kNobody;
  return call;
}

absl::Status Absent(Store& store, int size) {
  std::vector<int> missing;
  for (int rank = 0; rank < size; ++rank) {
    if (!store.Get(EntryKey(rank), Now()).ok()) missing.push_back(rank);
  }
  if (missing.empty()) {
    return WithFailedRank(
        absl::DeadlineExceededError(
            "all ranks came, but rank 0 did not compare them in time"),
        0);
  }
  return WithFailedRank(
      absl::DeadlineExceededError(
          absl::StrCat(RankList(missing), " of ", size,
                       " did not join in time: were all of them started, with "
                       "the same rendezvous and secret?")),
      missing.front());
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
std::string Asked(const RollEntry& entry) {
  if (entry.device_backend.empty()) return entry.backend;
  return absl::StrCat("cpu:", entry.backend, ",cuda:", entry.device_backend);
}

absl::Status CheckBackends(const std::vector<RollEntry>& entries) {
  std::vector<std::optional<std::string>> asked;
  for (const RollEntry& entry : entries) {
    asked.push_back(absl::StrCat("\"", Asked(entry), "\""));
  }
  return NoDeviation("backends", FindDeviation(asked), asked);
}

RollCall Decide(const std::vector<RollEntry>& entries) {
  RollCall call;
  call.backend = entries[0].backend;
  call.one_network = true;
  const RollEntry* unable = nullptr;
  for (const RollEntry& entry : entries) {
    call.one_network &= entry.host.network == entries[0].host.network;
    if (call.elsewhere == kNobody && entry.host != entries[0].host) {
      call.elsewhere = entry.rank;
    }
    if (unable == nullptr && !entry.shm_obstacle.empty()) unable = &entry;
  }
  call.one_host = call.elsewhere == kNobody;
  if (call.backend != kAuto) return call;
  if (!call.one_host) {
    call.reason =
        absl::StrCat("rank ", call.elsewhere, " is not on the host of rank 0");
  } else if (unable != nullptr) {
    call.reason =
        absl::StrCat("on rank ", unable->rank, ": ", unable->shm_obstacle);
  }
  call.backend = call.reason.empty() ? "shm" : "gloo";
  return call;
}

// Waits a while for the records of the ranks from `first` on, so that ranks
// which join a little later find the summary.
void AwaitOthers(Store& store, const RollEntry& own, int first,
                 Deadline deadline, std::vector<int>& came) {
  const Deadline grace =
      Deadline::Earlier(deadline, Deadline::After(kReadGrace));
  for (int rank = first; rank < own.world_size; ++rank) {
    if (store.Get(EntryKey(rank), grace).ok()) came.push_back(rank);
  }
}

// The error of world sizes that differ, of which `entries` has the first. Waits
// a while for the other ranks, which decide who deviates and need to find the
// summary: for as many as the size that most ranks requested.
absl::Status CompareSizes(Store& store, const std::vector<RollEntry>& entries,
                          Deadline deadline, std::vector<int>& came) {
  const Deadline grace =
      Deadline::Earlier(deadline, Deadline::After(kReadGrace));
  std::vector<std::optional<std::string>> asked;
  for (const RollEntry& entry : entries) {
    asked.push_back(absl::StrCat(entry.world_size));
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
    const absl::StatusOr<std::string> text = store.Get(EntryKey(next), grace);
    const auto entry = text.ok() ? DecodeEntry(next, *text)
                                 : absl::StatusOr<RollEntry>(text.status());
    if (text.ok()) came.push_back(next);
    asked.push_back(entry.ok() ? std::optional(absl::StrCat(entry->world_size))
                               : std::nullopt);
    // From here on no rank is waited for.
    if (!text.ok() && next >= entries[0].world_size) {
      return NoDeviation("world sizes", FindDeviation(asked), asked);
    }
  }
}

// Rank 0's part. `came` receives the ranks whose record was found.
absl::StatusOr<RollCall> Compare(Store& store, const RollEntry& own,
                                 Deadline deadline, std::vector<int>& came) {
  if (!own.error.ok()) {
    AwaitOthers(store, own, 1, deadline, came);
    return WithRank(own.error, own.rank);
  }
  std::vector<RollEntry> entries = {own};
  for (int rank = 1; rank < own.world_size; ++rank) {
    const absl::StatusOr<std::string> text =
        store.Get(EntryKey(rank), deadline);
    if (absl::IsDeadlineExceeded(text.status())) {
      return Absent(store, own.world_size);
    }
    SHERD_RETURN_IF_ERROR(text.status());
    came.push_back(rank);
    SHERD_ASSIGN_OR_RETURN(RollEntry entry, DecodeEntry(rank, *text));
    if (!entry.error.ok()) {
      AwaitOthers(store, own, rank + 1, deadline, came);
      return WithRank(Annotate(entry.error, absl::StrCat("rank ", rank)), rank);
    }
    entries.push_back(std::move(entry));
    if (entries.back().world_size != own.world_size) {
      return CompareSizes(store, entries, deadline, came);
    }
  }
  SHERD_RETURN_IF_ERROR(CheckBackends(entries));
  RollCall call = Decide(entries);
  if (own.one_host_only && !call.one_host) {
    return WithRank(
        absl::FailedPreconditionError(absl::StrCat(
            "the backend ", call.backend, " works on one host only, but rank ",
            call.elsewhere, " is not on the host of rank 0: use auto or gloo")),
        call.elsewhere);
  }
  return call;
}

absl::StatusOr<RollCall> Lead(Store& store, const RollEntry& own,
                              Deadline deadline) {
  std::vector<int> came;
  absl::StatusOr<RollCall> verdict = Compare(store, own, deadline, came);
  SHERD_RETURN_IF_ERROR(
      store.Set(kVerdictKey, EncodeVerdict(verdict, own.world_size)));
  if (!verdict.ok() && !came.empty()) {
    std::vector<std::string> keys;
    for (int rank : came) keys.push_back(ReadKey(rank));
    store.Wait(keys, Deadline::After(kReadGrace)).IgnoreError();
  }
  return verdict;
}

absl::StatusOr<RollCall> Follow(Store& store, const RollEntry& own,
                                Deadline deadline) {
  const auto read = [&]() -> absl::StatusOr<RollCall> {
    const absl::StatusOr<std::string> text = store.Get(kVerdictKey, deadline);
    if (absl::IsDeadlineExceeded(text.status())) {
      return Absent(store, own.world_size);
    }
    SHERD_RETURN_IF_ERROR(text.status());
    return DecodeVerdict(*text, own);
  };
  absl::StatusOr<RollCall> verdict = read();
  if (!verdict.ok()) store.Set(ReadKey(own.rank), "").IgnoreError();
  return verdict;
}

}  // namespace

absl::StatusOr<RollCall> CallRoll(Store& store, const RollEntry& own,
                                  Deadline deadline) {
  SHERD_RETURN_IF_ERROR(store.Set(EntryKey(own.rank), Encode(own)));
  if (own.rank == 0) return Lead(store, own, deadline);
  if (!own.error.ok()) {
    store
        .Wait({kVerdictKey},
              Deadline::Earlier(deadline, Deadline::After(kReadGrace)))
        .IgnoreError();
    store.Set(ReadKey(own.rank), "").IgnoreError();
    return WithRank(own.error, own.rank);
  }
  return Follow(store, own, deadline);
}

}  // namespace sherd::internal
