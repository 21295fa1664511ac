#ifndef SHERD_TESTING_BACKEND_AVAILABILITY_H_
#define SHERD_TESTING_BACKEND_AVAILABILITY_H_

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/comm/backend.h"
#include "sherd/testing/exit_codes.h"

namespace sherd::testing::internal {

struct BackendAvailability {
  // Null where the plugin, or what it stands on, is not there.
  const Backend* backend = nullptr;
  // Why tests on it do not run here.
  std::optional<Skip> skip;
};

// Whether ranks of this machine can use the backend `name`, which is one name
// and not "auto". Loads its plugin, initialises nothing. nccl and mpi are
// Sherd's own and yet need not be there, since they stand on vendors'
// libraries: without them, tests are skipped.
//   kNotFound            "Backend NAME not supported!" and what was searched.
//   kFailedPrecondition  The plugin is there but broken.
absl::StatusOr<BackendAvailability> FindAvailability(absl::string_view name);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_BACKEND_AVAILABILITY_H_
