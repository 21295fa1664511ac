#ifndef SHERD_SERIALIZATION_CHECKPOINT_ASYNC_GROUP_SAVES_H_
#define SHERD_SERIALIZATION_CHECKPOINT_ASYNC_GROUP_SAVES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/async/async_save.h"
#include "sherd/serialization/checkpoint/async/save_snapshot.h"
#include "sherd/serialization/checkpoint/async/save_state.h"
#include "sherd/serialization/checkpoint/async/staging_ring.h"
#include "sherd/serialization/checkpoint/background_group.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint/save/saver.h"
#include "sherd/serialization/checkpoint_async.h"

namespace sherd {

// The asynchronous saves of one group on this rank: their thread, the group on
// which the ranks' threads meet, and the memory for copies.
//
// A save is begun on the caller's thread, which plans it and copies what there
// is room for, unless a former save still waits for room. Then it is the
// thread's: it writes the saves one after another, and whenever a shard was
// written makes the next copies, of whatever save, in the room that became
// free. So copies are made by one of the two at a time, in the order of the
// saves.
//
// An incremental save reads its shards twice, and frees nothing before its end.
// If they have not all been copied when its turn comes, because they find no
// room at once, this rank's part is not incremental.
//
// Threads. Start is ordered by the caller; everything else is safe.
class GroupSaves {
 public:
  // The first of `group`. Collective; errors as SaveCheckpointAsync.
  static absl::StatusOr<std::shared_ptr<GroupSaves>> Begin(
      ProcessGroup& group, std::optional<absl::Duration> timeout);

  // StartAsyncSave.
  absl::StatusOr<SaveHandle> Start(SaveJob job, const AsyncJobOptions& options);

  // Waits for all saves, and for the end of the thread; false, at once, on that
  // thread, which then ends by itself. With an error as `cause` the save that
  // runs and those that wait fail with it. No save may be started any more.
  bool End(const absl::Status& cause);

  // The first error that was not returned, if there is one; the others count as
  // returned.
  absl::Status TakeError();

 private:
  struct Save {
    SaveJob job;
    std::function<void(const absl::Status&)> ended;
    std::shared_ptr<PreparedSave> prepared;
    // Null if it failed before.
    std::unique_ptr<SaveSnapshot> snapshot;
    std::shared_ptr<internal::SaveState> state =
        std::make_shared<internal::SaveState>();
    // On this rank, or, once it has failed, on any: nothing was saved, since
    // the call returned the error of a former save.
    bool only_reports = false;

    bool NeedsRoom() const {
      return prepared->status.ok() && !snapshot->all_placed();
    }
  };

  GroupSaves(BackgroundGroup channel, int threads);

  // Everything that can go wrong on this rank, and the copies that can be made
  // now.
  absl::Status Prepare(Save& save,
                       const std::shared_ptr<SaveJob::Tensors>& tensors,
                       int64_t budget);

  // Copies what there is room for.
  absl::Status Fill(Save& save, int threads, SaveJob::Progress progress);

  // The thread.
  void Main();
  Save* AwaitSave();
  absl::Status Run(Save& save);
  // SaveJob::prepare and SaveJob::elements.
  std::shared_ptr<const PreparedSave> EndPreparing(Save& save,
                                                   SaveJob::Progress progress);
  absl::StatusOr<Tensor> Elements(Save& save, const PlannedShard& shard,
                                  SaveJob::Progress progress);
  // Of a save that has failed: whether it only reports, on any rank.
  // Collective.
  bool AnyOnlyReports(const Save& save);
  // Frees the room of the shards before that one, which were written.
  void Release(Save& save, size_t shard);
  // Makes the copies that there is room for, of the saves in their order.
  void Refill(SaveJob::Progress progress);
  // The same in a step of its own. Collective.
  void RefillTogether(const SaveOptions& options);
  // Removes the first save.
  void Finish(const absl::Status& status);

  const BackgroundGroup channel_;
  const int log_rank_;
  // That copy on the caller's side.
  const int threads_;
  CopyStreams streams_;
  // Why there is no thread; set by Begin.
  absl::Status unusable_;

  absl::Mutex mutex_;
  // The first is the one that runs. Only the thread removes saves, and only the
  // caller's adds them.
  std::deque<std::unique_ptr<Save>> saves_ ABSL_GUARDED_BY(mutex_);
  // How many of the first saves need no room any more.
  size_t placed_ ABSL_GUARDED_BY(mutex_) = 0;
  StagingRing ring_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  // Of saves that failed; perhaps the error was never returned. Not of those
  // that only report: each of them would make the next one fail, for ever.
  std::vector<std::shared_ptr<internal::SaveState>> failed_
      ABSL_GUARDED_BY(mutex_);

  // Held while the thread is joined, which does not take it.
  absl::Mutex join_mutex_;
  std::thread thread_;
  // Of `thread_`, also once it was joined.
  std::thread::id thread_id_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_ASYNC_GROUP_SAVES_H_
