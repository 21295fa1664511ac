#ifndef SHERD_TOOLS_SHERD_RANK_PROCESS_H_
#define SHERD_TOOLS_SHERD_RANK_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {

struct RankProcessOptions {
  // Program, found through PATH if it has no '/', and its arguments.
  std::vector<std::string> command;
  // "NAME=value" entries that replace those of this process.
  std::vector<std::string> environment;
  // Whether output comes through pipes; otherwise it goes where this process's
  // does.
  bool pipes = true;
  // Signals that the program starts with blocked.
  sigset_t signal_mask;
};

struct RankProcess {
  // Also the number of its process group.
  pid_t pid = -1;
  // Non-blocking ends of the pipes, if any.
  UniqueFd standard_output;
  UniqueFd standard_error;
};

// Starts a program in a process group of its own, with an empty standard input
// and default signal handling; the kernel kills it if this process dies.
//
// Errors. Those of execve, so that a program that cannot be run is no rank
// that failed:
//   kNotFound, kPermissionDenied, kInternal  Named by the program.
// Threads. Call it while the process has one thread: it forks, and the kernel
// takes the end of the calling thread for that of the parent.
absl::StatusOr<RankProcess> StartRankProcess(const RankProcessOptions& options);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_RANK_PROCESS_H_
