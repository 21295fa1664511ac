#ifndef SHERD_CORE_PROCESS_PROCESS_HANDLE_H_
#define SHERD_CORE_PROCESS_PROCESS_HANDLE_H_

#include <cstdint>

#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/process_identity.h"

namespace sherd {

// Returns a descriptor that is readable once the process has ended. Empty, with
// errno set, if the process does not exist or the kernel has no such
// descriptors.
UniqueFd OpenPidFd(int64_t pid);

// Watches whether another process is alive, by a descriptor that all handles of
// this process share; if the kernel provides none, by its number.
//
// Threads. HasEnded from any thread.
class ProcessHandle {
 public:
  ProcessHandle() = default;
  ProcessHandle(const ProcessHandle&) = delete;
  ProcessHandle& operator=(const ProcessHandle&) = delete;
  ~ProcessHandle();

  // Called once, before the other methods.
  void Watch(const ProcessIdentity& identity);

  // True once the process has exited or was killed, even if it was not waited
  // for.
  // Cost. One system call.
  bool HasEnded() const;

 private:
  ProcessIdentity identity_;
  int fd_ = -1;
};

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_PROCESS_HANDLE_H_
