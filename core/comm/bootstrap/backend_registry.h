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
#include "sherd/core/comm/channel/backend.h"

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

}  // namespace sherd

#endif  // SHERD_CORE_COMM_BOOTSTRAP_BACKEND_REGISTRY_H_
