#ifndef SHERD_SERIALIZATION_CHECKPOINT_ASYNC_SAVES_REGISTRY_H_
#define SHERD_SERIALIZATION_CHECKPOINT_ASYNC_SAVES_REGISTRY_H_

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/serialization/checkpoint/async/group_saves.h"

namespace sherd {

// The groups of this process that have asynchronous saves. Ends those of a
// group with it, and all of them when the process exits.
//
// Threads. Safe; For and Flush of one group are ordered by the caller.
class SavesRegistry {
 public:
  // Lives forever.
  static SavesRegistry& Get();

  // Those of `group`, begun if necessary.
  absl::StatusOr<std::shared_ptr<GroupSaves>> For(
      ProcessGroup& group, std::optional<absl::Duration> timeout);

  // FlushSaves.
  absl::Status Flush(ProcessGroup& group);

 private:
  using Saves = std::shared_ptr<GroupSaves>;

  SavesRegistry();

  void GroupEnds(ProcessGroup* group, const absl::Status& health);
  void ProcessExits();
  void End(const Saves& saves, const absl::Status& cause);
  void JoinEnded();

  absl::Mutex mutex_;
  // An entry lives as long as the group, which removes it. Null: none, or
  // flushed.
  std::map<ProcessGroup*, Saves> saves_ ABSL_GUARDED_BY(mutex_);
  // That end by themselves, and whose threads are still to be joined.
  std::vector<Saves> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_ASYNC_SAVES_REGISTRY_H_
