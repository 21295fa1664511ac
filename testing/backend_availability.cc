#include "sherd/testing/backend_availability.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/backend_registry.h"
#include "sherd/testing/launched_ranks.h"

namespace sherd::testing::internal {
namespace {

constexpr char kLauncher[] = "mpirun";

SkipReason ReasonFor(absl::string_view name) {
  return name == "nccl" ? SkipReason::kNoNccl : SkipReason::kBackendUnavailable;
}

// The plugin or a library below it is missing; what is there but broken is no
// reason to skip.
bool IsMissing(const absl::Status& status) {
  return absl::IsNotFound(status) ||
         absl::StrContains(status.message(), "cannot open shared object file");
}

// A backend that needs its launcher cannot work in a process that it has not
// started, such as the one that is going to start it.
absl::Status Probe(const Backend& backend) {
  const absl::Status status = backend.Probe();
  if (status.ok() || !backend.info().needs_launcher) return status;
  return FindLauncher(GetKnobOr(Knob::kTestLauncher, kLauncher)).status();
}

}  // namespace

absl::StatusOr<BackendAvailability> FindAvailability(absl::string_view name) {
  const absl::StatusOr<const Backend*> found =
      BackendRegistry::Global().Find(name);
  BackendAvailability availability;
  absl::Status status = found.status();
  if (found.ok()) {
    availability.backend = *found;
    status = Probe(**found);
  } else if ((name != "nccl" && name != "mpi") || !IsMissing(status)) {
    return status;
  }
  if (!status.ok()) {
    availability.skip = {ReasonFor(name),
                         absl::StrCat("(", status.message(), ")")};
  }
  return availability;
}

}  // namespace sherd::testing::internal
