#ifndef SHERD_TESTING_HARNESS_RANK_SUPERVISOR_H_
#define SHERD_TESTING_HARNESS_RANK_SUPERVISOR_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/testing/harness/kept_outputs.h"
#include "sherd/testing/harness/launched_ranks.h"
#include "sherd/testing/harness/run_outcome.h"

namespace sherd::testing::internal {

// The descriptors that a rank is started with; -1: none.
struct RankFds {
  int results = -1;
  // Delivers the commands; see RankReporter.
  int commands = -1;
};

struct SupervisorOptions {
  int world_size = 1;
  std::string program;
  std::vector<std::string> arguments;
  // The environment of `rank`; with a launcher, of all ranks: it is -1 then,
  // and the rank's own variables are left out.
  std::function<std::vector<std::string>(int rank, RankFds fds)> environment;
  // The ranks run the tests that they are asked to run, one after the other,
  // not the one in their arguments.
  bool persistent = false;
  // Starts the ranks, in place of the harness itself. A launcher ends all of
  // them when one is killed. Not with `persistent`.
  std::optional<LauncherOptions> launcher;
  // Where the outputs of a run are collected and the ranks' flight recorders
  // write; used by these ranks alone. A path may be empty: nowhere.
  RunFiles files;
  // "NAME=value" in the environment of the ranks only. It identifies processes
  // that a rank left behind.
  std::string mark;
};

struct RunLimits {
  absl::Duration timeout;
  // Once a rank has ended abnormally, how long the others may continue, to
  // report their errors.
  absl::Duration grace;
};

// One process per rank. Collects the ranks' reports, draining all result pipes
// and all output at the same time.
//
// A run ends when all ranks have reached its end, or at the timeout, or `grace`
// after the first abnormal end of a rank. Ranks that still run then write the
// stacks of all their threads into their output and the contents of their
// flight recorders into files, get SIGTERM and, one second later, SIGKILL. A
// rank that was stopped by SIGSTOP is continued for this, and the outcome
// records it.
//
// No process survives a rank that has ended: neither one of its process group
// nor one that has its pipes open, in any group. (A launcher gives each rank a
// group of its own; remaining processes are killed with the launcher's end.)
class RankSupervisor {
 public:
  // Starts the ranks.
  static absl::StatusOr<std::unique_ptr<RankSupervisor>> Start(
      SupervisorOptions options);
  // Kills ranks that still run.
  ~RankSupervisor();

  // Has persistent ranks run the test that GoogleTest knows as `name`. The
  // outcome has a rank's reports, its output and how it reached the end of the
  // test as if the rank had ended with it, with the exit code that it would
  // have. Requires that all ranks run, and have reached the end of the test
  // before.
  RunOutcome RunTest(const std::string& name, const RunLimits& limits);

  // Whether all persistent ranks reached the end of the last test and can run
  // another. They may have ended since.
  bool AllRanksFinished() const;

  // Whether the process of each rank still runs.
  bool DoAllRun();

  // Runs the ranks to their end. Notifies persistent ones that no test follows.
  RunOutcome RunToEnd(const RunLimits& limits);

 private:
  class Impl;

  explicit RankSupervisor(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

// Start and RunToEnd.
RunOutcome SuperviseRanks(SupervisorOptions options, const RunLimits& limits);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_RANK_SUPERVISOR_H_
