#ifndef SHERD_CORE_COMM_FLIGHT_FLIGHT_FILES_H_
#define SHERD_CORE_COMM_FLIGHT_FLIGHT_FILES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"

namespace sherd {

// The dumps of the flight recorders of a job's ranks, as read from files. The
// fields are those of core/comm/flight/flight_dump.h; texts have no control
// characters.

// A call of RPC that has not ended, on one of its two workers.
struct FlightFileCall {
  // The other worker called this one.
  bool incoming = false;
  uint64_t number = 0;
  std::string method;
  int peer = 0;
  std::string peer_name;
  std::string state;
  int64_t started_ns = 0;
  std::optional<int64_t> deadline_ns;
};

struct FlightFileGroup {
  int64_t id = 0;
  int64_t instance = 0;
  std::string name;
  std::string backend;
  int rank = 0;
  int size = 1;
  // One per rank, or none: rank r is r.
  std::vector<int> world_ranks;
  bool alive = false;
  // Calls that ended, without send and recv; unset if the file does not contain
  // it.
  std::optional<uint64_t> ended_collectives;
  // Device of the device part; empty: none.
  std::string device;
  std::string device_backend;
  // The job rank of the failed rank, as recorded by the file's rank.
  std::optional<int> failed_rank;
  // Those of RPC's workers; unset of other groups.
  std::optional<std::vector<FlightFileCall>> calls;

  int world_rank(int r) const {
    return world_ranks.empty() ? r : world_ranks[static_cast<size_t>(r)];
  }
};

struct FlightFileEntry {
  int64_t id = 0;
  // Index into the file's groups.
  size_t group = 0;
  uint64_t sequence = 0;
  std::string op;
  // Empty where the operation has none.
  std::string dtype;
  std::string reduction;
  std::optional<int> root;
  std::optional<int64_t> tag;
  uint64_t bytes = 0;
  bool is_even = false;
  bool on_device = false;
  std::string path;
  // "enqueued", "started", "completed" or "failed".
  std::string state;
  std::string status;
  int64_t enqueued_ns = 0;
  std::optional<int64_t> started_ns;
  std::optional<int64_t> ended_ns;
  std::optional<int64_t> deadline_ns;

  bool outstanding() const { return state == "enqueued" || state == "started"; }
  bool failed() const { return state == "failed"; }
  bool is_point_to_point() const { return op == "send" || op == "recv"; }
};

struct FlightFile {
  std::string path;
  int rank = 0;
  int64_t pid = 0;
  std::string host;
  std::string boot;
  std::string reason;
  std::string detail;
  int64_t monotonic_ns = 0;
  int64_t wall_ns = 0;
  int64_t capacity = 0;
  uint64_t dropped = 0;
  std::vector<FlightFileGroup> groups;
  // By id.
  std::vector<FlightFileEntry> entries;
};

// Files larger than this are refused.
inline constexpr int64_t kMaxFlightFileBytes = int64_t{64} << 20;

// Reads the text of a dump; `path` is for messages.
//   kDataLoss            The text is not a dump; the message names the field
//                        and what was expected.
//   kFailedPrecondition  The dump has another version of the format.
absl::StatusOr<FlightFile> ParseFlightFile(const std::string& path,
                                           const std::string& text);

struct FlightDirectoryFiles {
  // One per rank, by rank: the newest.
  std::vector<FlightFile> files;
  // Files that could not be read, and why.
  std::vector<std::string> unreadable;
  // Further notes for the reader: older files that were skipped.
  std::vector<std::string> notes;
};

// Reads every flight.rank-*.json of the directory.
//   kNotFound  There is no such file, or no such directory.
//   kDataLoss  None of the files could be read; the message lists all reasons.
absl::StatusOr<FlightDirectoryFiles> ReadFlightDirectory(
    FileSystem& files, const std::string& directory);

}  // namespace sherd

#endif  // SHERD_CORE_COMM_FLIGHT_FLIGHT_FILES_H_
