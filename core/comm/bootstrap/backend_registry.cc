#include "sherd/core/comm/bootstrap/backend_registry.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

// Messages for backends that users expect by name, where they are not found.
struct KnownName {
  absl::string_view name;
  absl::string_view about;
};
constexpr KnownName kKnownNames[] = {
    {"nccl",
     "nccl moves the memory of NVIDIA GPUs; it is a plugin of its own, which "
     "this build does not bring: on CPUs use gloo, mpi, shm or auto"},
    {"hccl", "hccl is its vendor's: put its Sherd plugin there"},
    {"oneccl", "oneccl is its vendor's: put its Sherd plugin there"},
    {"ucc", "ucc is its vendor's: put its Sherd plugin there"},
};

absl::Status WithAdvice(absl::Status status, absl::string_view name) {
  if (!absl::IsNotFound(status)) return status;
  for (const KnownName& known : kKnownNames) {
    if (known.name == name) {
      return absl::NotFoundError(
          absl::StrCat(status.message(), ". ", known.about));
    }
  }
  return status;
}

}  // namespace

BackendRegistry& BackendRegistry::Global() {
  static BackendRegistry* const registry = new BackendRegistry;
  return *registry;
}

absl::Status BackendRegistry::Register(std::unique_ptr<Backend> backend) {
  const std::string name = backend->info().name;
  absl::MutexLock lock(&mutex_);
  const auto [it, inserted] = backends_.try_emplace(name, std::move(backend));
  if (!inserted) {
    return absl::AlreadyExistsError(
        absl::StrCat("a backend called \"", name, "\" is registered already (",
                     it->second->info().origin, ")"));
  }
  return absl::OkStatus();
}

void BackendRegistry::SetLoader(Loader loader) {
  absl::MutexLock lock(&mutex_);
  loader_ = std::move(loader);
}

absl::StatusOr<const Backend*> BackendRegistry::Find(absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  const auto it = backends_.find(name);
  if (it != backends_.end()) return it->second.get();
  if (!loader_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "backend \"", name,
        "\" would have to be loaded, but this program has no loader: add "
        "@sherd//backends:loader (or @sherd//:sherd) to its deps"));
  }
  absl::StatusOr<std::unique_ptr<Backend>> backend = loader_(name);
  if (!backend.ok()) return WithAdvice(backend.status(), name);
  const Backend* const found = backend->get();
  backends_.emplace(std::string(name), *std::move(backend));
  return found;
}

std::vector<std::string> BackendRegistry::Names() {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [name, backend] : backends_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::shared_ptr<PeerMemory>> OpenPeerMemory(
    absl::Span<const ProcessIdentity> processes) {
  SHERD_ASSIGN_OR_RETURN(const Backend* const backend,
                         BackendRegistry::Global().Find("shm"));
  return backend->OpenPeerMemory(processes);
}

}  // namespace sherd
