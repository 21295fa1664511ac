#include "sherd/core/comm/flight/flight_dump.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/process/process_identity.h"

namespace sherd::internal {
namespace {

using Json = nlohmann::ordered_json;

// Enough for every failure that a person will read about, few enough that a
// program that fails for ever does not fill a disk or spend its time here.
constexpr int kMostDumps = 64;

// Details are cut to this length: readers refuse longer texts.
constexpr size_t kLongestDetail = 4096;

std::string Dump(const Json& json) {
  // Names of groups may be any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ToText(absl::string_view text) { return std::string(text); }

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json CountersToJson(const GroupCounters& counters) {
  Json json = Json::object();
  for (int i = 0; i < kNumCollectiveOps; ++i) {
    const auto op = static_cast<CollectiveOp>(i);
    const OperationCount& count = counters.Of(op);
    if (count.calls == 0) continue;
    json[ToText(Name(op))] = {{"calls", count.calls},
                              {"bytes", count.bytes},
                              {"seconds", count.seconds},
                              {"errors", count.errors}};
  }
  return json;
}

Json GroupToJson(const FlightGroup& group) {
  Json json = {
      {"id", group.id},
      {"instance", group.instance},
      {"name", group.info.name},
      {"backend", group.info.backend},
      {"rank", group.info.rank},
      {"size", group.info.size},
      {"world_ranks", group.info.world_ranks},
      {"alive", group.alive},
      {"counters", group.alive ? CountersToJson(group.counters) : Json()}};
  if (!group.info.device.empty()) {
    json["device"] = group.info.device;
    json["device_backend"] = group.info.device_backend;
  }
  if (group.failed_rank) json["failed_rank"] = *group.failed_rank;
  if (!group.calls) return json;
  json["calls"] = Json::array();
  for (const FlightCall& call : *group.calls) {
    json["calls"].push_back({{"direction", call.incoming ? "in" : "out"},
                             {"number", call.number},
                             {"method", call.method},
                             {"peer", call.peer},
                             {"peer_name", call.peer_name},
                             {"state", call.state},
                             {"started_ns", call.started},
                             {"deadline_ns", OrNull(call.deadline)}});
  }
  return json;
}

Json EntryToJson(const FlightEntry& entry) {
  Json json = {{"id", entry.id},
               {"group", entry.group},
               {"sequence", entry.sequence},
               {"op", ToText(Name(entry.op))}};
  json["dtype"] = entry.dtype ? Json(ToText(Name(*entry.dtype))) : Json();
  json["reduction"] =
      entry.reduction ? Json(ToText(Name(*entry.reduction))) : Json();
  json["root"] = entry.root < 0 ? Json() : Json(entry.root);
  json["tag"] = IsPointToPoint(entry.op) ? Json(entry.tag) : Json();
  json["bytes"] = entry.bytes;
  if (entry.is_even) json["is_even"] = true;
  if (entry.on_device) json["on_device"] = true;
  json["path"] = ToText(Name(entry.path));
  json["state"] = ToText(Name(entry.state));
  json["status"] = entry.outstanding()
                       ? Json()
                       : Json(absl::StatusCodeToString(entry.status));
  json["enqueued_ns"] = entry.enqueued;
  json["started_ns"] = OrNull(entry.started);
  json["ended_ns"] = OrNull(entry.ended);
  json["deadline_ns"] = OrNull(entry.deadline);
  return json;
}

std::string Seconds(int64_t nanoseconds) {
  return absl::StrFormat("%.1f s", 1e-9 * static_cast<double>(nanoseconds));
}

std::string Stuck(const FlightGroupInfo& group, const FlightEntry& entry,
                  int64_t now) {
  std::string text =
      absl::StrCat("group \"", group.name, "\", rank ", group.rank, ": ",
                   Name(entry.op), " #", entry.sequence);
  if (entry.op == CollectiveOp::kSend) {
    absl::StrAppend(&text, " to rank ", entry.root, ", tag ", entry.tag);
  } else if (entry.op == CollectiveOp::kRecv) {
    absl::StrAppend(&text, " from rank ", entry.root, ", tag ", entry.tag);
  } else if (entry.root >= 0) {
    absl::StrAppend(&text, ", root ", entry.root);
  }
  if (entry.on_device) absl::StrAppend(&text, ", on ", group.device);
  absl::StrAppend(&text, ", ", entry.bytes, " bytes, ", Name(entry.state), " ",
                  Seconds(now - entry.started.value_or(entry.enqueued)),
                  " ago");
  if (!entry.deadline) return text;
  const int64_t left = *entry.deadline - now;
  return left < 0
             ? absl::StrCat(text, ", deadline passed ", Seconds(-left), " ago")
             : absl::StrCat(text, ", deadline in ", Seconds(left));
}

std::string HostName() {
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0) return "";
  return name.data();
}

FlightWriter& GlobalWriter() {
  static auto* const writer = new FlightWriter(
      FileSystem::Posix(), FlightDirectoryOfKnobs(), kMostDumps);
  return *writer;
}

}  // namespace

absl::string_view Name(FlightReason reason) {
  switch (reason) {
    case FlightReason::kTimeout:
      return "timeout";
    case FlightReason::kAbort:
      return "abort";
    case FlightReason::kPoisoned:
      return "poisoned";
    case FlightReason::kSignal:
      return "signal";
    case FlightReason::kRequest:
      return "request";
  }
  return "unknown";
}

FlightDump TakeFlightDump(const FlightRecorder& recorder, FlightReason reason,
                          absl::string_view detail, int world_rank) {
  static const auto* const host = new std::string(HostName());
  static const auto* const boot = new std::string(BootId());
  FlightDump dump = {.reason = reason,
                     .detail = std::string(detail.substr(0, kLongestDetail)),
                     .rank = world_rank,
                     .pid = getpid(),
                     .host = *host,
                     .boot = *boot,
                     .snapshot = recorder.Snapshot()};
  std::map<uint32_t, bool> has_entries;
  for (const FlightGroup& group : dump.snapshot.groups) {
    if (group.info.world_rank() == world_rank) has_entries[group.id] = false;
  }
  std::erase_if(dump.snapshot.entries, [&](const FlightEntry& entry) {
    const auto it = has_entries.find(entry.group);
    if (it == has_entries.end()) return true;
    it->second = true;
    return false;
  });
  std::erase_if(dump.snapshot.groups, [&](const FlightGroup& group) {
    const auto it = has_entries.find(group.id);
    return it == has_entries.end() ||
           (!group.alive && !it->second && !group.failed_rank);
  });
  return dump;
}

std::string FlightDumpToJson(const FlightDump& dump) {
  const FlightSnapshot& snapshot = dump.snapshot;
  const auto list = [](const auto& items, auto to_json) {
    std::string text = "[";
    for (const auto& item : items) {
      absl::StrAppend(&text, text.size() == 1 ? "\n" : ",\n", "  ",
                      Dump(to_json(item)));
    }
    return text + (text.size() == 1 ? "]" : "\n ]");
  };
  const Json clock = {{"source", snapshot.clock},
                      {"monotonic_ns", snapshot.monotonic_ns},
                      {"wall_ns", snapshot.wall_ns}};
  return absl::StrCat(
      "{\n \"format\": \"sherd-flight\",\n \"version\": ", kFlightFormatVersion,
      ",\n \"rank\": ", dump.rank, ",\n \"pid\": ", dump.pid,
      ",\n \"host\": ", Dump(dump.host), ",\n \"boot\": ", Dump(dump.boot),
      ",\n \"reason\": ", Dump(ToText(Name(dump.reason))),
      ",\n \"detail\": ", Dump(dump.detail), ",\n \"clock\": ", Dump(clock),
      ",\n \"capacity\": ", snapshot.capacity,
      ",\n \"dropped\": ", snapshot.dropped, ",\n \"stuck\": ",
      list(DescribeStuck(dump), [](const std::string& s) { return Json(s); }),
      ",\n \"groups\": ", list(snapshot.groups, GroupToJson),
      ",\n \"entries\": ", list(snapshot.entries, EntryToJson), "\n}\n");
}

std::vector<std::string> DescribeStuck(const FlightDump& dump) {
  std::map<uint32_t, const FlightGroupInfo*> groups;
  for (const FlightGroup& group : dump.snapshot.groups) {
    groups[group.id] = &group.info;
  }
  std::vector<const FlightEntry*> entries;
  for (const FlightEntry& entry : dump.snapshot.entries) {
    if (entry.outstanding() && groups.count(entry.group) != 0) {
      entries.push_back(&entry);
    }
  }
  const auto since = [](const FlightEntry* entry) {
    return entry->started.value_or(entry->enqueued);
  };
  std::stable_sort(entries.begin(), entries.end(),
                   [&](const FlightEntry* a, const FlightEntry* b) {
                     return since(a) < since(b);
                   });
  std::vector<std::string> texts;
  for (const FlightEntry* entry : entries) {
    texts.push_back(
        Stuck(*groups[entry->group], *entry, dump.snapshot.monotonic_ns));
  }
  return texts;
}

FlightDirectory FlightDirectoryOfKnobs() {
  const std::string wanted = GetKnobOr(Knob::kFlightDir, "");
  if (wanted == "none") return {};
  if (!wanted.empty()) return {.path = wanted};
  const pid_t parent = getppid();
  // Tests break groups by the hundred: their dumps are removed with their
  // files.
  const std::string directory =
      GetKnobOr(Knob::kTestTmpDir, GetKnobOr(Knob::kTmpDir, "/tmp"));
  return {
      .path = absl::StrCat(directory, "/sherd-flight-", geteuid(), "-", parent,
                           "-", ProcessIdentity::Of(parent).start_time),
      .is_private = true};
}

absl::Status FlightWriter::MakeDirectory() {
  if (!directory_.is_private) return files_.CreateDirectories(directory_.path);
  // Its name can be guessed: another user may have made it, or a link.
  if (mkdir(directory_.path.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, "mkdir", directory_.path);
  }
  struct stat info;
  if (lstat(directory_.path.c_str(), &info) != 0) {
    return ErrnoStatus(errno, "lstat", directory_.path);
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory_.path,
                     ": expected a directory of this user; set "
                     "SHERD_FLIGHT_DIR to another one"));
  }
  return absl::OkStatus();
}

std::string FlightWriter::PathFor(const FlightDump& dump) {
  std::string& path = own_paths_[dump.rank];
  if (!path.empty()) return path;
  const std::string stem = absl::StrCat("flight.rank-", dump.rank);
  path = JoinPath(directory_.path, stem + ".json");
  // A file that cannot be checked is not replaced either.
  if (files_.Exists(path).value_or(true)) {
    path = JoinPath(directory_.path,
                    absl::StrCat(stem, ".pid-", dump.pid, ".json"));
  }
  return path;
}

bool FlightWriter::IsWanted() {
  absl::MutexLock lock(&mutex_);
  return !directory_.path.empty() && dumps_left_ > 0;
}

absl::StatusOr<std::string> FlightWriter::Write(const FlightDump& dump) {
  if (directory_.path.empty()) return absl::CancelledError("not wanted");
  absl::MutexLock lock(&mutex_);
  if (dumps_left_ <= 0) {
    return absl::CancelledError("this process has written all that it may");
  }
  --dumps_left_;
  const std::string json = FlightDumpToJson(dump);
  SHERD_RETURN_IF_ERROR(MakeDirectory());
  const std::string path = PathFor(dump);
  // Not synced: it is needed while this hang is examined, not after a crash of
  // the machine, and syncing may take seconds.
  const std::string temporary = absl::StrCat(path, ".tmp-", dump.pid);
  const auto write = [&]() -> absl::Status {
    SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                           files_.Create(temporary));
    SHERD_RETURN_IF_ERROR(file->WriteAt(
        0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(json.data()),
                               json.size())));
    return file->Close();
  };
  absl::Status status = write();
  if (status.ok()) status = files_.Rename(temporary, path);
  if (!status.ok()) {
    files_.Remove(temporary).IgnoreError();
    return status;
  }
  return path;
}

std::string WriteFlightDump(const FlightDump& dump) {
  const absl::StatusOr<std::string> path = GlobalWriter().Write(dump);
  if (absl::IsCancelled(path.status())) return "";
  if (!path.ok()) {
    SHERD_LOG(kWarning) << "no flight recorder dump: "
                        << path.status().message();
    return "";
  }
  SHERD_LOG(kWarning) << "flight recorder (" << Name(dump.reason)
                      << "): " << *path;
  return *path;
}

std::string DumpFlight(const GroupTag& group, FlightReason reason,
                       absl::string_view detail) {
  if (!GlobalWriter().IsWanted()) return "";
  return WriteFlightDump(TakeFlightDump(group.recorder(), reason, detail,
                                        group.info().world_rank()));
}

void DumpFlightOfAllRanks(const FlightRecorder& recorder, FlightReason reason,
                          absl::string_view detail) {
  for (const int rank : recorder.LiveWorldRanks()) {
    const FlightDump dump = TakeFlightDump(recorder, reason, detail, rank);
    for (const std::string& text : DescribeStuck(dump)) {
      SHERD_LOG(kWarning) << text;
    }
    WriteFlightDump(dump);
  }
}

}  // namespace sherd::internal
