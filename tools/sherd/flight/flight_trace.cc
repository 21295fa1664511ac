#include "sherd/tools/sherd/flight/flight_trace.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

using Json = nlohmann::ordered_json;

// The offset from a file's times to those of the first file.
int64_t OffsetTo(const FlightFile& first, const FlightFile& file) {
  if (!file.boot.empty() && file.boot == first.boot) return 0;
  return (file.wall_ns - file.monotonic_ns) -
         (first.wall_ns - first.monotonic_ns);
}

int64_t BeginOf(const FlightFileEntry& entry) {
  return entry.started_ns.value_or(entry.enqueued_ns);
}

int64_t EndOf(const FlightFile& file, const FlightFileEntry& entry) {
  return std::max(entry.ended_ns.value_or(file.monotonic_ns), BeginOf(entry));
}

class TraceWriter {
 public:
  void Add(const Json& event) {
    absl::StrAppend(&text_, text_.empty() ? "" : ",\n",
                    event.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  void AddName(const char* what, int pid, int64_t tid,
               const std::string& name) {
    Add({{"ph", "M"},
         {"name", what},
         {"pid", pid},
         {"tid", tid},
         {"args", {{"name", name}}}});
  }
  std::string Finish() const {
    return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n",
                        text_, "\n]}\n");
  }

 private:
  std::string text_;
};

Json Arguments(const FlightFile& file, const FlightFileEntry& entry) {
  const FlightFileGroup& group = file.groups[entry.group];
  Json json = {{"group", group.name},
               {"sequence", entry.sequence},
               {"bytes", entry.bytes},
               {"path", entry.path},
               {"state", entry.state}};
  if (!entry.dtype.empty()) json["dtype"] = entry.dtype;
  if (!entry.reduction.empty()) json["reduction"] = entry.reduction;
  if (entry.on_device) json["device"] = group.device;
  if (entry.root) json["root"] = *entry.root;
  if (entry.tag) json["tag"] = *entry.tag;
  if (!entry.status.empty()) json["status"] = entry.status;
  if (entry.started_ns) {
    json["queued_us"] =
        1e-3 * static_cast<double>(*entry.started_ns - entry.enqueued_ns);
  }
  return json;
}

void AddFile(const FlightFile& file, int64_t offset, TraceWriter& writer) {
  writer.AddName("process_name", file.rank, 0,
                 absl::StrCat("rank ", file.rank, " (", file.host, ", process ",
                              file.pid, ")"));
  std::vector<const FlightFileEntry*> entries;
  for (const FlightFileEntry& entry : file.entries) entries.push_back(&entry);
  std::stable_sort(entries.begin(), entries.end(),
                   [](const FlightFileEntry* a, const FlightFileEntry* b) {
                     return BeginOf(*a) < BeginOf(*b);
                   });
  // By group, the tracks and when each is free again.
  struct Track {
    int64_t tid;
    int64_t free_at;
  };
  std::vector<std::vector<Track>> tracks(file.groups.size());
  int64_t last_tid = 0;
  for (const FlightFileEntry* entry : entries) {
    std::vector<Track>& own = tracks[entry->group];
    const int64_t begin = BeginOf(*entry);
    auto track = std::find_if(own.begin(), own.end(), [begin](const Track& t) {
      return t.free_at <= begin;
    });
    if (track == own.end()) {
      own.push_back({++last_tid, 0});
      track = own.end() - 1;
      writer.AddName("thread_name", file.rank, last_tid,
                     absl::StrCat("group ", file.groups[entry->group].name));
    }
    const int64_t end = EndOf(file, *entry);
    track->free_at = end;
    writer.Add(
        {{"ph", "X"},
         {"name", absl::StrCat(entry->op, entry->outstanding() ? " (not ended)"
                                          : entry->failed()    ? " (failed)"
                                                               : "")},
         {"cat", entry->op},
         {"pid", file.rank},
         {"tid", track->tid},
         {"ts", 1e-3 * static_cast<double>(begin + offset)},
         {"dur", 1e-3 * static_cast<double>(end - begin)},
         {"args", Arguments(file, *entry)}});
  }
}

}  // namespace

std::string FlightToChromeTrace(const std::vector<FlightFile>& files) {
  int64_t origin = std::numeric_limits<int64_t>::max();
  for (const FlightFile& file : files) {
    for (const FlightFileEntry& entry : file.entries) {
      origin = std::min(origin, BeginOf(entry) + OffsetTo(files[0], file));
    }
  }
  TraceWriter writer;
  for (const FlightFile& file : files) {
    AddFile(file, OffsetTo(files[0], file) - origin, writer);
  }
  return writer.Finish();
}

}  // namespace sherd
