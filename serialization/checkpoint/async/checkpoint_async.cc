#include "sherd/serialization/checkpoint_async.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/serialization/checkpoint/async/async_save.h"
#include "sherd/serialization/checkpoint/async/save_state.h"
#include "sherd/serialization/checkpoint/async/saves_registry.h"
#include "sherd/serialization/checkpoint/state/collect_tensors.h"

namespace sherd {
namespace {

absl::Status NoSave() {
  return absl::FailedPreconditionError(
      "the SaveHandle is empty: expected one that SaveCheckpointAsync "
      "returned");
}

}  // namespace

absl::Status SaveHandle::Copied() {
  return state_ == nullptr ? NoSave() : state_->Copied();
}

absl::Status SaveHandle::Durable() {
  return state_ == nullptr ? NoSave() : state_->Durable();
}

absl::StatusOr<SaveHandle> SaveCheckpointAsync(
    const std::string& path,
    const std::map<std::string, ShardedTensor>& tensors,
    std::shared_ptr<ProcessGroup> group, const AsyncSaveOptions& options) {
  if (group == nullptr) {
    SHERD_ASSIGN_OR_RETURN(group, DefaultGroup());
  }
  return StartAsyncSave(
      SaveJobOf(path, tensors, std::move(group), options.save),
      {.staging_budget = options.staging_budget});
}

absl::StatusOr<SaveHandle> SaveCheckpointAsync(
    const std::string& path, const StateDict& state,
    std::shared_ptr<ProcessGroup> group, const AsyncSaveOptions& options) {
  if (group == nullptr) {
    SHERD_ASSIGN_OR_RETURN(group, DefaultGroup());
  }
  SHERD_ASSIGN_OR_RETURN(SaveJob job,
                         CollectTensors(path, state, group, options.save));
  return StartAsyncSave(std::move(job),
                        {.staging_budget = options.staging_budget});
}

absl::Status FlushSaves(std::shared_ptr<ProcessGroup> group) {
  if (group == nullptr) {
    SHERD_ASSIGN_OR_RETURN(group, DefaultGroup());
  }
  return SavesRegistry::Get().Flush(*group);
}

}  // namespace sherd
