#ifndef SHERD_TOOLS_SHERD_RUN_RUN_OUTCOME_H_
#define SHERD_TOOLS_SHERD_RUN_RUN_OUTCOME_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "sherd/core/comm/flight/flight_analysis.h"
#include "sherd/core/process/exit_status.h"

namespace sherd {

struct RankEnd {
  ExitStatus status;
  // The launcher had sent it a signal that ends programs.
  bool was_signalled = false;
};

// How the ranks of a run ended, and what they left behind.
struct RunEnd {
  std::vector<RankEnd> ranks;
  // The rank that failed before all others, and how long after the start.
  std::optional<int> first_failure;
  absl::Duration failed_after;
  // The timeout that passed, and the ranks that had not ended by then.
  std::optional<absl::Duration> timeout;
  std::vector<int> late_ranks;
  bool output_broken = false;
  // The first signal that was passed on to end the ranks; 0: none.
  int passed_on = 0;
  // Ranks were to go on without those that failed.
  bool goes_on = false;
  // The ranks' dumps, and where they are.
  FlightReport flight;
  std::string flight_directory;
};

struct RunOutcome {
  int exit_code = 0;
  // One line without its end; empty if no rank failed.
  std::string summary;
  // Ranks that failed, ascending, as opposed to those that failed because of
  // them.
  std::vector<int> failed;
};

// The failed ranks: those that the dumps name, and those that a signal killed
// which the launcher did not send; without any, the rank that failed first. If
// all ranks ended with the same exit code, the summary names no rank.
//
// Exit code. 124 after a timeout, 141 if nothing read the output, 0 if all
// ranks ended with 0, or, with `goes_on`, some did, and all others failed as
// above. Otherwise that of the rank that is the root cause, if it ended by
// itself, or else of the one that failed first; 128 plus the signal that killed
// it.
RunOutcome JudgeRun(const RunEnd& end);

// "rank 3", "ranks 0, 2".
std::string NameRanks(const std::vector<int>& ranks);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_RUN_RUN_OUTCOME_H_
