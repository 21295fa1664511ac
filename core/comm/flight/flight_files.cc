#include "sherd/core/comm/flight/flight_files.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/flight/flight_dump.h"

namespace sherd {
namespace {

using Json = nlohmann::json;

constexpr int kMaxRanks = 1 << 20;
constexpr size_t kMaxText = 1 << 16;
constexpr size_t kMaxFiles = 1 << 16;
// Of all files together.
constexpr size_t kMaxTotalBytes = size_t{1} << 32;
// Deeper than any dump; nothing below is kept.
constexpr int kMaxDepth = 8;
// Far from overflow when times are subtracted and offsets added.
constexpr int64_t kLatestTime = std::numeric_limits<int64_t>::max() / 8;
constexpr int64_t kStale = int64_t{600} * 1'000'000'000;

// Terminals act on control characters.
std::string Printable(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return text;
}

// Reads fields of one object and remembers the first that is not as expected.
class Fields {
 public:
  Fields(const Json& json, std::string where)
      : json_(json), where_(std::move(where)) {
    if (!json.is_object()) Fail("", "an object");
  }

  std::string Text(const char* key) {
    const Json* const value = Find(key);
    if (value == nullptr || !value->is_string() ||
        value->get_ref<const std::string&>().size() > kMaxText) {
      Fail(key, "a text");
      return "";
    }
    return Printable(value->get<std::string>());
  }
  std::string TextOrNull(const char* key) {
    return IsNull(key) ? "" : Text(key);
  }

  int64_t Number(const char* key, int64_t low, int64_t high) {
    const Json* const value = Find(key);
    if (value != nullptr && value->is_number_integer()) {
      const bool fits =
          !value->is_number_unsigned() ||
          value->get<uint64_t>() <=
              static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
      const int64_t number = fits ? value->get<int64_t>() : 0;
      if (fits && number >= low && number <= high) return number;
    }
    Fail(key, absl::StrCat("a number from ", low, " to ", high));
    return low;
  }
  int64_t Number(const char* key) {
    return Number(key, 0, std::numeric_limits<int64_t>::max());
  }
  int64_t Time(const char* key) { return Number(key, 0, kLatestTime); }
  std::optional<int64_t> TimeOrNull(const char* key) {
    if (IsNull(key)) return std::nullopt;
    return Time(key);
  }

  bool Bool(const char* key) {
    const Json* const value = Find(key);
    if (value == nullptr || !value->is_boolean()) {
      Fail(key, "true or false");
      return false;
    }
    return value->get<bool>();
  }

  const Json& Array(const char* key) {
    static const Json* const empty = new Json(Json::array());
    const Json* const value = Find(key);
    if (value == nullptr || !value->is_array()) {
      Fail(key, "a list");
      return *empty;
    }
    return *value;
  }

  // Null too if it is absent.
  bool IsNull(const char* key) const {
    const Json* const value = Find(key);
    return value == nullptr || value->is_null();
  }

  const Json* Find(const char* key) const {
    if (!json_.is_object()) return nullptr;
    const auto it = json_.find(key);
    return it == json_.end() ? nullptr : &*it;
  }

  void Fail(absl::string_view key, absl::string_view expected) {
    if (!status_.ok()) return;
    status_ = absl::DataLossError(absl::StrCat(where_, key.empty() ? "" : ".",
                                               key, ": expected ", expected));
  }

  const absl::Status& status() const { return status_; }

 private:
  const Json& json_;
  const std::string where_;
  absl::Status status_;
};

std::optional<uint64_t> EndedCollectives(const Json* counters) {
  if (counters == nullptr || !counters->is_object()) return std::nullopt;
  uint64_t total = 0;
  for (const auto& [op, count] : counters->items()) {
    if (op == "send" || op == "recv" || !count.is_object()) continue;
    const auto calls = count.find("calls");
    if (calls != count.end() && calls->is_number_unsigned()) {
      total += calls->get<uint64_t>();
    }
  }
  return total;
}

absl::StatusOr<FlightFileCall> ParseCall(const Json& json,
                                         const std::string& where, int size) {
  Fields fields(json, where);
  FlightFileCall call;
  const std::string direction = fields.Text("direction");
  call.incoming = direction == "in";
  if (!call.incoming && direction != "out") {
    fields.Fail("direction", "in or out");
  }
  call.number = static_cast<uint64_t>(fields.Number("number"));
  call.method = fields.Text("method");
  call.peer = static_cast<int>(fields.Number("peer", 0, size - 1));
  call.peer_name = fields.Text("peer_name");
  call.state = fields.Text("state");
  call.started_ns = fields.Time("started_ns");
  call.deadline_ns = fields.TimeOrNull("deadline_ns");
  SHERD_RETURN_IF_ERROR(fields.status());
  return call;
}

absl::StatusOr<FlightFileGroup> ParseGroup(const Json& json,
                                           const std::string& where) {
  Fields fields(json, where);
  FlightFileGroup group;
  group.id = fields.Number("id");
  group.instance = fields.Number("instance");
  group.name = fields.Text("name");
  group.backend = fields.Text("backend");
  group.size = static_cast<int>(fields.Number("size", 1, kMaxRanks));
  group.rank = static_cast<int>(fields.Number("rank", 0, group.size - 1));
  group.alive = fields.Bool("alive");
  group.ended_collectives = EndedCollectives(fields.Find("counters"));
  group.device = fields.TextOrNull("device");
  group.device_backend = fields.TextOrNull("device_backend");
  if (!fields.IsNull("failed_rank")) {
    group.failed_rank =
        static_cast<int>(fields.Number("failed_rank", 0, kMaxRanks - 1));
  }
  const Json& ranks = fields.Array("world_ranks");
  if (!ranks.empty() && ranks.size() != static_cast<size_t>(group.size)) {
    fields.Fail("world_ranks", "as many ranks as the group has, or none");
  }
  SHERD_RETURN_IF_ERROR(fields.status());
  for (const Json& rank : ranks) {
    if (!rank.is_number_unsigned() || rank.get<uint64_t>() >= kMaxRanks) {
      fields.Fail("world_ranks", "ranks");
      return fields.status();
    }
    group.world_ranks.push_back(rank.get<int>());
  }
  if (fields.IsNull("calls")) return group;
  group.calls.emplace();
  const Json& calls = fields.Array("calls");
  for (size_t i = 0; i < calls.size(); ++i) {
    SHERD_ASSIGN_OR_RETURN(
        FlightFileCall call,
        ParseCall(calls[i], absl::StrCat(where, ".calls[", i, "]"),
                  group.size));
    group.calls->push_back(std::move(call));
  }
  SHERD_RETURN_IF_ERROR(fields.status());
  return group;
}

absl::StatusOr<FlightFileEntry> ParseEntry(
    const Json& json, const std::string& where,
    const std::map<int64_t, size_t>& groups,
    const std::vector<FlightFileGroup>& group_list) {
  Fields fields(json, where);
  FlightFileEntry entry;
  entry.id = fields.Number("id");
  const auto group = groups.find(fields.Number("group"));
  if (group == groups.end()) {
    fields.Fail("group", "the id of one of the file's groups");
    return fields.status();
  }
  entry.group = group->second;
  entry.sequence = static_cast<uint64_t>(fields.Number("sequence"));
  entry.op = fields.Text("op");
  entry.dtype = fields.TextOrNull("dtype");
  entry.reduction = fields.TextOrNull("reduction");
  if (!fields.IsNull("root")) {
    entry.root = static_cast<int>(
        fields.Number("root", 0, group_list[entry.group].size - 1));
  }
  if (!fields.IsNull("tag")) {
    entry.tag = fields.Number("tag", std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<int64_t>::max());
  }
  entry.bytes = static_cast<uint64_t>(fields.Number("bytes"));
  entry.is_even = !fields.IsNull("is_even") && fields.Bool("is_even");
  entry.on_device = !fields.IsNull("on_device") && fields.Bool("on_device");
  entry.path = fields.Text("path");
  entry.state = fields.Text("state");
  entry.status = fields.TextOrNull("status");
  entry.enqueued_ns = fields.Time("enqueued_ns");
  entry.started_ns = fields.TimeOrNull("started_ns");
  entry.ended_ns = fields.TimeOrNull("ended_ns");
  entry.deadline_ns = fields.TimeOrNull("deadline_ns");
  if (!entry.outstanding() && !entry.failed() && entry.state != "completed") {
    fields.Fail("state", "enqueued, started, completed or failed");
  }
  if (!entry.outstanding() && !entry.ended_ns) {
    fields.Fail("ended_ns", "the time of its end");
  }
  SHERD_RETURN_IF_ERROR(fields.status());
  return entry;
}

absl::Status ParseLists(Fields& fields, const std::string& path,
                        FlightFile& file) {
  std::map<int64_t, size_t> by_id;
  int64_t ranks = 0;
  const Json& groups = fields.Array("groups");
  for (size_t i = 0; i < groups.size(); ++i) {
    SHERD_ASSIGN_OR_RETURN(
        FlightFileGroup group,
        ParseGroup(groups[i], absl::StrCat(path, ": groups[", i, "]")));
    if (!by_id.emplace(group.id, i).second) {
      return absl::DataLossError(absl::StrCat(
          path, ": groups[", i, "].id: expected one that no other has"));
    }
    // A reader of the file iterates over the ranks of its groups.
    ranks += group.size;
    if (ranks > kMaxRanks) {
      return absl::DataLossError(absl::StrCat(
          path, ": groups: expected at most ", kMaxRanks, " ranks together"));
    }
    file.groups.push_back(std::move(group));
  }
  SHERD_RETURN_IF_ERROR(fields.status());
  const Json& entries = fields.Array("entries");
  for (size_t i = 0; i < entries.size(); ++i) {
    SHERD_ASSIGN_OR_RETURN(
        FlightFileEntry entry,
        ParseEntry(entries[i], absl::StrCat(path, ": entries[", i, "]"), by_id,
                   file.groups));
    file.entries.push_back(std::move(entry));
  }
  std::stable_sort(file.entries.begin(), file.entries.end(),
                   [](const FlightFileEntry& a, const FlightFileEntry& b) {
                     return a.id < b.id;
                   });
  return absl::OkStatus();
}

bool IsFlightFileName(absl::string_view name) {
  return absl::StartsWith(name, "flight.rank-") &&
         absl::EndsWith(name, ".json");
}

// Keeps the newest file of each rank.
void Select(std::vector<FlightFile> all, FlightDirectoryFiles& result) {
  int64_t newest = 0;
  std::map<int, FlightFile> by_rank;
  for (FlightFile& file : all) {
    newest = std::max(newest, file.wall_ns);
    const auto [it, is_new] = by_rank.try_emplace(file.rank, file);
    if (is_new) continue;
    const bool is_newer = file.wall_ns > it->second.wall_ns;
    result.notes.push_back(absl::StrCat(
        is_newer ? it->second.path : file.path,
        ": passed over, there is a newer dump of rank ", file.rank));
    if (is_newer) it->second = std::move(file);
  }
  for (auto& [rank, file] : by_rank) {
    if (newest - file.wall_ns > kStale) {
      result.notes.push_back(absl::StrCat(
          file.path, ": ", (newest - file.wall_ns) / 60'000'000'000,
          " minutes older than the newest dump; is it of another run?"));
    }
    result.files.push_back(std::move(file));
  }
}

}  // namespace

absl::StatusOr<FlightFile> ParseFlightFile(const std::string& path,
                                           const std::string& text) {
  const auto keep = [](int depth, Json::parse_event_t, Json&) {
    return depth <= kMaxDepth;
  };
  const Json json = Json::parse(text, keep, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::DataLossError(
        absl::StrCat(path,
                     ": expected a flight recorder dump, one JSON "
                     "object; it is cut off or something else"));
  }
  Fields fields(json, path + ": ");
  if (fields.Text("format") != "sherd-flight") {
    return absl::DataLossError(absl::StrCat(
        path, ": expected a flight recorder dump (format \"sherd-flight\")"));
  }
  const int64_t version = fields.Number("version");
  SHERD_RETURN_IF_ERROR(fields.status());
  if (version != internal::kFlightFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ": version ", version, " of the format, expected ",
        internal::kFlightFormatVersion, "; use the sherd that wrote it"));
  }
  FlightFile file;
  file.path = path;
  file.rank = static_cast<int>(fields.Number("rank", 0, kMaxRanks - 1));
  file.pid = fields.Number("pid");
  file.host = fields.Text("host");
  file.boot = fields.Text("boot");
  file.reason = fields.Text("reason");
  file.detail = fields.Text("detail");
  file.capacity = fields.Number("capacity");
  file.dropped = static_cast<uint64_t>(fields.Number("dropped"));
  SHERD_RETURN_IF_ERROR(ParseLists(fields, path, file));
  SHERD_RETURN_IF_ERROR(fields.status());
  static const Json* const absent = new Json();
  const Json* const clock = fields.Find("clock");
  Fields clock_fields(clock == nullptr ? *absent : *clock, path + ": clock");
  file.monotonic_ns = clock_fields.Time("monotonic_ns");
  file.wall_ns = clock_fields.Number("wall_ns", 0, kLatestTime * 2);
  SHERD_RETURN_IF_ERROR(clock_fields.status());
  return file;
}

absl::StatusOr<FlightDirectoryFiles> ReadFlightDirectory(
    FileSystem& files, const std::string& directory) {
  SHERD_ASSIGN_OR_RETURN(const bool exists, files.IsDirectory(directory));
  if (!exists) {
    return absl::NotFoundError(absl::StrCat(
        directory,
        ": no such directory, expected one with flight recorder dumps"));
  }
  SHERD_ASSIGN_OR_RETURN(std::vector<std::string> names, files.List(directory));
  std::erase_if(
      names, [](const std::string& name) { return !IsFlightFileName(name); });
  if (names.empty()) {
    return absl::NotFoundError(absl::StrCat(
        directory,
        ": no flight.rank-*.json in it; ranks write them when an operation "
        "fails, and at kill -USR1"));
  }
  if (names.size() > kMaxFiles) {
    return absl::ResourceExhaustedError(absl::StrCat(
        directory, ": ", names.size(), " dumps, expected at most ", kMaxFiles));
  }
  FlightDirectoryFiles result;
  std::vector<FlightFile> all;
  size_t total = 0;
  for (const std::string& name : names) {
    const std::string path = JoinPath(directory, name);
    const absl::StatusOr<std::string> text =
        ReadFile(files, path, kMaxFlightFileBytes);
    total += text.ok() ? text->size() : 0;
    if (total > kMaxTotalBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          directory, ": more than ", kMaxTotalBytes, " bytes of dumps"));
    }
    absl::StatusOr<FlightFile> file =
        text.ok() ? ParseFlightFile(path, *text) : text.status();
    if (file.ok()) {
      all.push_back(*std::move(file));
    } else {
      result.unreadable.emplace_back(file.status().message());
    }
  }
  if (all.empty()) {
    return absl::DataLossError(absl::StrJoin(result.unreadable, "\n"));
  }
  Select(std::move(all), result);
  return result;
}

}  // namespace sherd
