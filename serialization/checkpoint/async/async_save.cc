#include "sherd/serialization/checkpoint/async/async_save.h"

#include <memory>
#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint/async/saves_registry.h"

namespace sherd {

absl::StatusOr<SaveHandle> StartAsyncSave(SaveJob job,
                                          const AsyncJobOptions& options) {
  SHERD_ASSIGN_OR_RETURN(
      const std::shared_ptr<GroupSaves> saves,
      SavesRegistry::Get().For(*job.group, job.options.timeout));
  return saves->Start(std::move(job), options);
}

}  // namespace sherd
