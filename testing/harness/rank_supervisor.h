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

// The descriptors that a rank is started with; -1: it has none.
struct RankFds {
  int results = -1;
  // What to do comes through it; see RankReporter.
  int commands = -1;
};

struct SupervisorOptions {
  int world_size = 1;
  std::string program;
  std::vector<std::string> arguments;
  // The environment of `rank`; with a launcher, of all ranks: it is -1 then,
  // and the rank's own variables are left out.
  std::function<std::vector<std::string>(int rank, RankFds fds)> environment;
  // The ranks run the tests that they are told to, one after the other, not the
  // one of their arguments.
  bool persistent = false;
  // Starts the ranks, in place of the harness itself. It ends all of them when
  // one is killed. Not with `persistent`.
  std::optional<LauncherOptions> launcher;
  // Where the outputs of a run are collected and the ranks' flight recorders
  // write; of these ranks alone. A path may be empty: nowhere.
  RunFiles files;
  // "NAME=value" in the environment of all ranks, and of nobody else. What a
  // rank left behind is known by it.
  std::string mark;
};

struct RunLimits {
  absl::Duration timeout;
  // Once a rank has ended abnormally, how long the others may go on, to report
  // what they see.
  absl::Duration grace;
};

// One process per rank. Collects what they report, draining all result pipes
// and all output at the same time.
//
// A run ends when all ranks have come to its end, or at the timeout, or `grace`
// after the first abnormal end of a rank. Ranks that still run then write the
// stacks of all their threads into their output and what their flight recorders
// hold into files, get SIGTERM and, one second later, SIGKILL. A rank that was
// stopped by SIGSTOP is continued for it, and the outcome says so.
//
// No process is left behind by a rank that has ended: neither one of its
// process group nor one that holds its pipes, wherever it is. (A launcher gives
// each rank a group of its own; what is left is killed with the launcher's
// end.)
class RankSupervisor {
 public:
  // Starts the ranks.
  static absl::StatusOr<std::unique_ptr<RankSupervisor>> Start(
      SupervisorOptions options);
  // Kills ranks that still run.
  ~RankSupervisor();

  // Has persistent ranks run the test that GoogleTest knows as `name`.
  // What a rank reports, prints and how it comes to the end of the test stands
  // in the outcome as if it had ended with it: with the exit code that it would
  // have.
  // Needs: all ranks run, and have come to the end of the test before.
  RunOutcome RunTest(const std::string& name, const RunLimits& limits);

  // Whether all persistent ranks came to the end of the last test, fit for
  // another. They may have ended since.
  bool AllRanksFinished() const;

  // Whether the process of each rank still runs.
  bool DoAllRun();

  // Runs the ranks to their end. Persistent ones are told that no test follows.
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
