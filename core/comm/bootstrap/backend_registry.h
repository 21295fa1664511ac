#ifndef SHERD_CORE_COMM_BOOTSTRAP_BACKEND_REGISTRY_H_
#define SHERD_CORE_COMM_BOOTSTRAP_BACKEND_REGISTRY_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/process/process_identity.h"

namespace sherd {

// Finds backends by name. Knows those that were registered, and asks the
// loader for others, if one is linked. Backends are never removed.
//
// Threads. All methods may be called from any thread.
class BackendRegistry {
 public:
  // Turns a name into a backend, or returns an error that lists what was tried.
  using Loader = std::function<absl::StatusOr<std::unique_ptr<Backend>>(
      absl::string_view name)>;

  static BackendRegistry& Global();

  //   kAlreadyExists  The name is taken.
  absl::Status Register(std::unique_ptr<Backend> backend);

  // Installs the loader; the last one wins.
  void SetLoader(Loader loader);

  // Returns the backend called `name`, which is not one of Init's keywords
  // ("auto").
  //   kNotFound            There is no such backend: "Backend NAME not
  //                        supported!" and what was searched.
  //   kFailedPrecondition  It would have to be loaded and no loader is linked;
  //                        the message names the missing dependency.
  //   other                It was found but could not be loaded.
  absl::StatusOr<const Backend*> Find(absl::string_view name);

  // Names of the registered backends, sorted.
  std::vector<std::string> Names();

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::unique_ptr<Backend>> backends_
      ABSL_GUARDED_BY(mutex_);
  Loader loader_ ABSL_GUARDED_BY(mutex_);
};

// The memory of processes of this PID namespace that need not be in a group:
// what the allocator of backend shm holds there (Backend::
// peer_memory_allocator). Peer r is processes[r], which may be this process;
// a process exports by an object of its own.
//
//   kUnimplemented      The system does not let one of the processes be
//                       inspected; its place is the error's rank.
//   kNotFound, kFailedPrecondition  As BackendRegistry::Find("shm").
absl::StatusOr<std::shared_ptr<PeerMemory>> OpenPeerMemory(
    absl::Span<const ProcessIdentity> processes);

}  // namespace sherd

#endif  // SHERD_CORE_COMM_BOOTSTRAP_BACKEND_REGISTRY_H_
