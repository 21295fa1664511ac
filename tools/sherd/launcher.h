#ifndef SHERD_TOOLS_SHERD_LAUNCHER_H_
#define SHERD_TOOLS_SHERD_LAUNCHER_H_

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
  // Whether lines are prefixed by "[rank] ". Otherwise ranks write to this
  // process's output themselves, and find a terminal there if it is one.
  bool prefix = true;
  // How long the run may take.
  absl::Duration timeout = absl::InfiniteDuration();
  // How long ranks have to end by themselves after another one failed, and
  // then again after SIGTERM, before SIGKILL.
  absl::Duration grace = absl::Seconds(5);
};

struct LaunchResult {
  // 0 if all ranks ended with 0; otherwise that of the rank that failed first,
  // 128 plus its signal if one killed it; 124 if the run took too long; 141 if
  // nobody read the output any more.
  int exit_code = 0;
  // Which rank failed and how, and what became of the others: one line without
  // its end. Empty if none failed.
  std::string summary;
};

// Starts the ranks, with RANK, WORLD_SIZE, LOCAL_RANK and SHERD_INIT_METHOD in
// their environment, copies their output to this process's, and returns when
// all of them have ended.
//
// Signals. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on, and ranks that
// they do not end are killed after the grace; a second one kills at once.
// SIGUSR1 and SIGUSR2 are passed on, SIGTSTP stops the ranks too.
//
// No orphans. Each rank has a process group of its own, which is killed when
// its rank ends, also when this process is killed. Descendants that left their
// group are killed at the end of the run: they are known by their environment.
//
// Errors. The program cannot be started (kNotFound, kPermissionDenied), the
// options are wrong (kInvalidArgument), or processes, pipes or the directory
// for the rendezvous could not be made. No rank runs then.
//
// Threads. For a program's main thread while it is the only one. Changes signal
// dispositions of the process and collects all of its children.
absl::StatusOr<LaunchResult> Launch(const LaunchOptions& options);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_LAUNCHER_H_
