#ifndef SHERD_CORE_COMM_FLIGHT_FLIGHT_DUMP_H_
#define SHERD_CORE_COMM_FLIGHT_FLIGHT_DUMP_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/flight/flight_recorder.h"

namespace sherd::internal {

enum class FlightReason { kTimeout, kAbort, kPoisoned, kSignal, kRequest };

// "timeout", "abort", "poisoned", "signal", "request".
absl::string_view Name(FlightReason reason);

// The number of the file format; see FlightDumpToJson.
inline constexpr int kFlightFormatVersion = 1;

// A snapshot of one rank's recorded operations.
struct FlightDump {
  FlightReason reason = FlightReason::kRequest;
  std::string detail;
  // Among all ranks of the job.
  int rank = 0;
  int64_t pid = 0;
  std::string host;
  // Several hosts may have one name, and each boot of a host has its own clock.
  std::string boot;
  // Entries and groups of this rank only.
  FlightSnapshot snapshot;
};

// Copies the recorder's data about rank `world_rank`; writes nothing.
FlightDump TakeFlightDump(const FlightRecorder& recorder, FlightReason reason,
                          absl::string_view detail, int world_rank);

// One JSON object, an entry per line:
//   format, version      "sherd-flight", 1. A reader refuses another version;
//                        fields may be added without a new one.
//   rank, pid, host, boot
//   reason, detail       Why it was written.
//   clock                {source, monotonic_ns, wall_ns}: both clocks at the
//                        time of writing, in nanoseconds. All other times are
//                        nanoseconds of the monotonic one, which ranks with the
//                        same `boot` share.
//   capacity, dropped    Size of the ring; operations that were not recorded
//                        because it was full.
//   stuck                Texts about operations that have not ended.
//   groups               [{id, instance, name, backend, rank, size,
//                        world_ranks, alive, counters}]; `counters` is null, or
//                        {OP: {calls, bytes, seconds, errors}}. With a part on
//                        devices also `device`, that of this rank ("cuda:0"),
//                        and `device_backend`. A failed group also has
//                        `failed_rank`, the job rank of the failed rank, where
//                        this rank knows it. The group of RPC's workers has
//                        `calls`, those under way: [{direction, number, method,
//                        peer, peer_name, state, started_ns, deadline_ns}];
//                        "out" waits for worker `peer`, "in" is from it.
//   entries              [{id, group, sequence, op, dtype, reduction, root,
//                        tag, bytes, path, state, status, enqueued_ns,
//                        started_ns, ended_ns, deadline_ns}], by id; null for
//                        fields that an operation does not have. A call on the
//                        device also has `on_device`, which is true; one with
//                        blocks of one length and no lists also has `is_even`.
std::string FlightDumpToJson(const FlightDump& dump);

// A line for each operation that has not ended, the longest running first, such
// as `group "default", rank 2: all_reduce #17, started 31.2 s ago`.
std::vector<std::string> DescribeStuck(const FlightDump& dump);

// The directory to which a process writes its dumps.
struct FlightDirectory {
  // Empty: dumps are not written.
  std::string path;
  // The directory is created for, and must belong to, this user alone.
  bool is_private = false;
};

// SHERD_FLIGHT_DIR, otherwise a directory below TMPDIR (a test's: below
// TEST_TMPDIR) that processes with one parent share.
FlightDirectory FlightDirectoryOfKnobs();

// Writes dumps to DIRECTORY/flight.rank-R.json, or flight.rank-R.pid-P.json
// if another process has written the former. A later dump of a rank replaces
// its earlier one.
//
// Threads. Safe from any thread.
class FlightWriter {
 public:
  FlightWriter(FileSystem& files, FlightDirectory directory, int max_dumps)
      : files_(files),
        directory_(std::move(directory)),
        dumps_left_(max_dumps) {}

  // Returns the path. Readers see either the former file or the complete new
  // one.
  //   kCancelled           There is no directory, or the limit of dumps is
  //                        reached; not a fault.
  //   kResourceExhausted   There is no space.
  //   kFailedPrecondition  The directory belongs to another user.
  absl::StatusOr<std::string> Write(const FlightDump& dump);

  // False if Write would return kCancelled for every dump.
  bool IsWanted();

 private:
  absl::Status MakeDirectory();
  std::string PathFor(const FlightDump& dump)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  FileSystem& files_;
  const FlightDirectory directory_;
  absl::Mutex mutex_;
  int dumps_left_ ABSL_GUARDED_BY(mutex_);
  // Files that this process has written, by rank.
  std::map<int, std::string> own_paths_ ABSL_GUARDED_BY(mutex_);
};

// Writes `dump` to this process's directory of dumps and logs and returns the
// path. If it cannot be written, logs the error and returns an empty path.
// Takes as long as the file system does: name a local directory.
std::string WriteFlightDump(const FlightDump& dump);

// Takes and writes a dump of the group's rank. A caller whose operation failed
// calls it after notifying its peers, since writing takes milliseconds.
std::string DumpFlight(const GroupTag& group, FlightReason reason,
                       absl::string_view detail);

// Writes a dump of each rank of this process that has a group.
void DumpFlightOfAllRanks(const FlightRecorder& recorder, FlightReason reason,
                          absl::string_view detail);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_FLIGHT_FLIGHT_DUMP_H_
