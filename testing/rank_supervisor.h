#ifndef SHERD_TESTING_RANK_SUPERVISOR_H_
#define SHERD_TESTING_RANK_SUPERVISOR_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "sherd/testing/launched_ranks.h"
#include "sherd/testing/run_outcome.h"

namespace sherd::testing::internal {

struct SupervisorOptions {
  int world_size = 1;
  std::string program;
  std::vector<std::string> arguments;
  // The environment of `rank`, whose result pipe is `fd`; with a launcher, of
  // all ranks: both are -1, and the rank's own variables are left out.
  absl::FunctionRef<std::vector<std::string>(int rank, int fd)> environment;
  absl::Duration timeout;
  // Once a rank has ended abnormally, how long the others may go on, to report
  // what they see.
  absl::Duration grace;
  // Starts the ranks, in place of the harness itself. It ends all of them when
  // one is killed.
  std::optional<LauncherOptions> launcher;
};

// Runs one process per rank to its end and collects what they report, draining
// all result pipes and all output at the same time.
//
// The run ends when all ranks have ended, or at the timeout, or `grace` after
// the first abnormal end of a rank. Ranks that still run then write the stacks
// of all their threads into their output, get SIGTERM and, one second later,
// SIGKILL. No process is left behind, not even by ranks that started others
// without moving them to another process group. (A launcher gives each rank a
// group of its own and looks after it.)
RunOutcome SuperviseRanks(const SupervisorOptions& options);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_RANK_SUPERVISOR_H_
