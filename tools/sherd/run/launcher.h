#ifndef SHERD_TOOLS_SHERD_RUN_LAUNCHER_H_
#define SHERD_TOOLS_SHERD_RUN_LAUNCHER_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sherd {

inline constexpr int kMaxLocalRanks = 4096;

struct LaunchOptions {
  // From 1 to kMaxLocalRanks.
  int ranks = 1;
  // Program and arguments, the same for all ranks.
  std::vector<std::string> command;
  // "NAME=value" for all ranks, without the variables that the launcher sets.
  std::vector<std::string> environment;
  // Whether lines are prefixed by "[rank] ". Otherwise ranks write to this
  // process's output themselves, which may be a terminal.
  bool prefix = true;
  // Where each rank's output is also written, to rank-R.out and rank-R.err, and
  // its flight recorder dump; below restart-K for the K-th restart. Empty:
  // nowhere. Only with `prefix`.
  std::string log_directory;
  // How long the run may take, restarts included.
  absl::Duration timeout = absl::InfiniteDuration();
  // How long ranks have to end by themselves after another one failed, and then
  // again after SIGTERM, before SIGKILL.
  absl::Duration grace = absl::Seconds(5);
  // A rank that fails does not end the others.
  bool goes_on = false;
  // How often all ranks are restarted after a failure that the user did not
  // cause: as many as before, or, with min_ranks above 0, as many as did not
  // fail themselves, if these are at least min_ranks.
  int max_restarts = 0;
  int min_ranks = 0;
  // Receives the lines about restarts.
  std::function<void(const std::string& line)> notify;
};

struct LaunchResult {
  // The exit code of the last start, from JudgeRun().
  int exit_code = 0;
  // Which rank failed and how, which ranks reported it, how the others ended
  // and where their dumps are: one line without its newline. Empty if none
  // failed.
  std::string summary;
};

// Starts the ranks, with RANK, WORLD_SIZE, LOCAL_RANK, SHERD_INIT_METHOD and
// SHERD_FLIGHT_DIR in their environment, copies their output to this process's,
// and returns when all of them have ended.
//
// The end. After a failure, unless ranks are to continue, and after a timeout,
// the others have the grace period to end by themselves. Then those that handle
// SIGUSR1 get it, and a little time to write a flight recorder dump, also if
// they were stopped; then SIGTERM, and after the grace period SIGKILL. If ranks
// are to continue, those that the others' errors name as failed are ended when
// all others have ended.
//
// Signals. SIGINT, SIGTERM, SIGHUP and SIGQUIT are forwarded, and ranks that
// they do not end are killed after the grace period; a second one kills at
// once. SIGUSR1 and SIGUSR2 are forwarded, SIGTSTP stops the ranks too.
//
// No orphans. Each rank has a process group of its own, which is killed when
// its rank ends, also when this process is killed. Descendants that left their
// group are identified by their environment and killed at the end of the run.
// Directories of dumps of former runs are removed once they are a day old.
//
// Errors. The program cannot be started (kNotFound, kPermissionDenied), the
// options are wrong (kInvalidArgument), or processes, pipes or the directory
// for the rendezvous could not be created. In these cases no rank runs.
//
// Threads. Call it on a program's main thread while that is the only one.
// Changes signal dispositions of the process and collects all of its children.
absl::StatusOr<LaunchResult> Launch(const LaunchOptions& options);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_RUN_LAUNCHER_H_
