#include "sherd/core/comm/channel/peer_memory.h"

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/process/process_identity.h"

namespace sherd {

absl::StatusOr<std::shared_ptr<PeerMemory>> OpenPeerMemory(
    absl::Span<const ProcessIdentity> processes) {
  SHERD_ASSIGN_OR_RETURN(const Backend* const backend,
                         BackendRegistry::Global().Find("shm"));
  return backend->OpenPeerMemory(processes);
}

}  // namespace sherd
