#include "sherd/core/comm/remote_access.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace sherd {
namespace {

struct Registry {
  absl::Mutex mutex;
  RemoteAccessStarter starter ABSL_GUARDED_BY(mutex);
};

// Made by the first that comes, since others register among static
// initialisers; leaked.
Registry& GetRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

RemoteAccessStarter GetStarter() {
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mutex);
  return registry.starter;
}

absl::Status Check(const RemoteAccessOptions& options) {
  if (options.world_size < 1 || options.rank < 0 ||
      options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("remote access: rank ", options.rank, " of ",
                     options.world_size, ", expected 0 <= rank < world size"));
  }
  if (options.store == nullptr) {
    return absl::InvalidArgumentError(
        "remote access: a store that all workers share is missing");
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "remote access: the timeout must be above zero");
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterRemoteAccess(RemoteAccessStarter starter) {
  Registry& registry = GetRegistry();
  absl::MutexLock lock(&registry.mutex);
  registry.starter = std::move(starter);
}

bool HasRemoteAccess() { return GetStarter() != nullptr; }

absl::StatusOr<std::unique_ptr<RemoteAccess>> StartRemoteAccess(
    const RemoteAccessOptions& options) {
  if (absl::Status status = Check(options); !status.ok()) return status;
  const RemoteAccessStarter starter = GetStarter();
  if (starter == nullptr) {
    return absl::UnimplementedError(
        "remote access: no RPC is linked: depend on @sherd//rpc");
  }
  RemoteAccessOptions complete = options;
  if (complete.name.empty()) {
    complete.name = absl::StrCat("worker", options.rank);
  }
  return starter(complete);
}

}  // namespace sherd
