#include "sherd/testing/requirements.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/testing/backend_availability.h"
#include "sherd/testing/gpus.h"

namespace sherd::testing {
namespace {

std::optional<Skip> CheckBackend(const std::string& name) {
  const absl::StatusOr<internal::BackendAvailability> found =
      internal::FindAvailability(name);
  if (found.ok()) return found->skip;
  return Skip{SkipReason::kBackendUnavailable,
              absl::StrCat("(", found.status().message(), ")")};
}

}  // namespace

Requirement SkipIfFewerGpusThan(int n) {
  return Requirement([n](int) { return internal::SkipIfFewerGpus(n); });
}

Requirement RequiresGpuPerRank() {
  return Requirement([](int world_size) -> std::optional<Skip> {
    if (internal::VisibleGpus().empty()) {
      return Skip{SkipReason::kNoCuda, "(no GPU is visible)"};
    }
    return internal::SkipIfFewerGpus(world_size);
  });
}

Requirement RequiresBackend(std::string name) {
  return Requirement(
      [name = std::move(name)](int) { return CheckBackend(name); });
}

Requirement RequiresMpi() { return RequiresBackend("mpi"); }

Requirement RequiresRpc() {
  return Requirement([](int) -> std::optional<Skip> {
    if (HasRemoteAccess()) return std::nullopt;
    return Skip{SkipReason::kMissingDependency,
                "(no RPC is linked: depend on @sherd//rpc)"};
  });
}

Requirement RequiresWorldSizeAtLeast(int n) {
  return Requirement([n](int world_size) -> std::optional<Skip> {
    if (world_size >= n) return std::nullopt;
    return Skip{SkipReason::kSmallWorldSize,
                absl::StrCat("(", world_size, ", expected at least ", n, ")")};
  });
}

Requirement RequiresEvenWorldSize() {
  return Requirement([](int world_size) -> std::optional<Skip> {
    if (world_size % 2 == 0) return std::nullopt;
    return Skip{SkipReason::kOddWorldSize, absl::StrCat("(", world_size, ")")};
  });
}

}  // namespace sherd::testing
