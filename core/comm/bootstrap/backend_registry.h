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
  // Turns a name into a backend, or says everything that was tried.
  using Loader = std::function<absl::StatusOr<std::unique_ptr<Backend>>(
      absl::string_view name)>;

  static BackendRegistry& Global();

  //   kAlreadyExists  The name is taken.
  absl::Status Register(std::unique_ptr<Backend> backend);

  // Installs the loader; the last one wins.
  void SetLoader(Loader loader);

  // The backend called `name`, which is none of Init's own words ("auto").
  //   kNotFound            Nothing of that name: "Backend NAME not supported!"
  //                        and what was searched.
  //   kFailedPrecondition  It would have to be loaded and no loader is linked:
  //                        names the missing dependency.
  //   other                Found, but it could not be loaded.
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
