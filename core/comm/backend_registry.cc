#include "sherd/core/comm/backend_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {

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
  if (name == "auto") name = "gloo";
  absl::MutexLock lock(&mutex_);
  const auto it = backends_.find(name);
  if (it != backends_.end()) return it->second.get();
  if (!loader_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "backend \"", name,
        "\" would have to be loaded, but this program has no loader: add "
        "@sherd//backends:loader (or @sherd//:sherd) to its deps"));
  }
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, loader_(name));
  const Backend* const found = backend.get();
  backends_.emplace(std::string(name), std::move(backend));
  return found;
}

std::vector<std::string> BackendRegistry::Names() {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [name, backend] : backends_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace sherd
