#ifndef SHERD_BACKENDS_SHM_PEER_PROCESS_H_
#define SHERD_BACKENDS_SHM_PEER_PROCESS_H_

#include <cstdint>

namespace sherd::internal {

// A process of this host and PID namespace, told from a later one with the same
// number. A start time of 0 is unknown.
struct ProcessIdentity {
  int64_t pid = 0;
  uint64_t start_time = 0;

  static ProcessIdentity Own();

  friend bool operator==(const ProcessIdentity&,
                         const ProcessIdentity&) = default;
};

// Watches whether another process lives, by a descriptor that all groups of
// this process share; where the kernel gives none, by its number.
//
// Threads. HasEnded from any thread.
class PeerProcess {
 public:
  PeerProcess() = default;
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess();

  // Once, before the rest.
  void Watch(const ProcessIdentity& identity);

  // True once the process exited or was killed, also if nobody waited for it.
  // Cost. One system call.
  bool HasEnded() const;

 private:
  ProcessIdentity identity_;
  int fd_ = -1;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_PEER_PROCESS_H_
