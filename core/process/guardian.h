#ifndef SHERD_CORE_PROCESS_GUARDIAN_H_
#define SHERD_CORE_PROCESS_GUARDIAN_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {

// A process that outlives this one for a moment when this one is killed
// (SIGKILL, out of memory): it then kills the registered process groups and
// their descendants, and removes a directory, so that neither orphans nor files
// stay behind.
//
// Threads. It forks: create it while no other thread may hold a lock that is
// not one of the C library.
class Guardian {
 public:
  // Starts it. `mark` is the entry of their environment by which descendants
  // are known; see FindMarkedProcesses.
  static absl::StatusOr<std::unique_ptr<Guardian>> Start(
      const std::string& directory, const std::string& mark);

  // Ends it; it then kills and removes nothing.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  pid_t pid() const { return pid_; }

  void Watch(pid_t group);
  // The group has ended: its number may be reused from now on.
  void Forget(pid_t group);

 private:
  Guardian(pid_t pid, UniqueFd socket)
      : pid_(pid), socket_(std::move(socket)) {}
  void Send(pid_t message);

  const pid_t pid_;
  UniqueFd socket_;
};

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_GUARDIAN_H_
