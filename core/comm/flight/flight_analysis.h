#ifndef SHERD_CORE_COMM_FLIGHT_FLIGHT_ANALYSIS_H_
#define SHERD_CORE_COMM_FLIGHT_FLIGHT_ANALYSIS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sherd/core/comm/flight/flight_files.h"

namespace sherd {

// Ranks are named by their job rank, as the files are.

enum class FlightFindingKind {
  // Ranks called different operations, or with different arguments, as the
  // same call of the group.
  kMismatch,
  // Ranks did not make a call in which others wait or failed.
  kMissingInCall,
  // A message that one rank waits for was not sent, was not received, or has
  // another size.
  kMessage,
  // All ranks are in a call that does not end.
  kStuckTogether,
  // A call failed on ranks, with all ranks in it.
  kFailedTogether,
  // Ranks of the group wrote no dump, or one that cannot be read.
  kNoDump,
};

// "mismatch", "missing_in_call", "message", "stuck_together",
// "failed_together", "no_dump".
absl::string_view Name(FlightFindingKind kind);

struct FlightFinding {
  FlightFindingKind kind;
  // The ranks that the finding concerns: those that deviate from a majority.
  std::vector<int> ranks;
  // Number of the call; 0 if the finding concerns no call.
  uint64_t sequence = 0;
  std::string text;
};

struct FlightRankState {
  int rank = 0;        // in the job
  int group_rank = 0;  // in the group
  bool has_dump = false;
  // The last collective; unset if the rank has called none or its dump does not
  // reach back that far.
  std::optional<uint64_t> last_sequence;
  std::string last_op;
  std::string last_state;
  // How many calls it is behind the rank that is ahead; unset if unknown.
  std::optional<uint64_t> behind;
  // How long its last call had run, or how long ago it ended, when the dump was
  // written.
  double seconds = 0;
};

struct FlightGroupReport {
  std::string name;
  int64_t instance = 0;
  std::string backend;
  int size = 0;
  std::vector<FlightRankState> ranks;
  std::vector<FlightFinding> findings;
  // Of RPC's workers: the calls that they wait for, the longest first, and what
  // has become of them, and those that run for a worker that left no dump.
  // Unset of other groups.
  std::optional<std::vector<std::string>> calls;
};

// A rank that errors name as the failed rank, or if none names a rank, the one
// that deviates or is missing in the first finding.
struct FlightFailedRank {
  int rank = 0;
  // The other ranks whose errors lead to this rank, ascending.
  std::vector<int> named_by;
};

struct FlightReport {
  // Ranks with a dump.
  std::vector<int> ranks;
  // Reason and number of dumps, such as "timeout: 3".
  std::string reasons;
  // Each rank's detail text, by rank.
  std::vector<std::string> details;
  // Ranks that failed; the first is the root cause: the one to which the errors
  // of most ranks lead.
  std::vector<FlightFailedRank> failed;
  std::vector<FlightGroupReport> groups;
  std::vector<std::string> unreadable;
  std::vector<std::string> notes;

  // The first finding of ranks that deviate or are missing; null if there is
  // none.
  const FlightFinding* FirstDeviation() const;

  // Whether a rank deviated, is missing or is stuck.
  bool HasFindings() const;
};

// Aligns the files' entries by group and call. Of the calls that mismatch in a
// group only the first is a finding: later ones follow from it.
FlightReport AnalyzeFlight(const FlightDirectoryFiles& directory);

std::string FormatFlightReport(const FlightReport& report);

// One JSON object.
std::string FlightReportToJson(const FlightReport& report);

}  // namespace sherd

#endif  // SHERD_CORE_COMM_FLIGHT_FLIGHT_ANALYSIS_H_
