#ifndef SHERD_CORE_PROCESS_PROCESS_HANDLE_H_
#define SHERD_CORE_PROCESS_PROCESS_HANDLE_H_

#include <cstdint>

#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/process_identity.h"

namespace sherd {

// A descriptor that is readable once the process has ended. None, with errno,
// where there is no such process or the kernel has no such descriptors.
UniqueFd OpenPidFd(int64_t pid);

// Watches whether another process lives, by a descriptor that all handles of
// this process share; where the kernel gives none, by its number.
//
// Threads. HasEnded from any thread.
class ProcessHandle {
 public:
  ProcessHandle() = default;
  ProcessHandle(const ProcessHandle&) = delete;
  ProcessHandle& operator=(const ProcessHandle&) = delete;
  ~ProcessHandle();

  // Once, before the rest.
  void Watch(const ProcessIdentity& identity);

  // True once the process exited or was killed, also if nobody waited for it.
  // Cost. One system call.
  bool HasEnded() const;

 private:
  ProcessIdentity identity_;
  int fd_ = -1;
};

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_PROCESS_HANDLE_H_
