#ifndef SHERD_SERIALIZATION_CHECKPOINT_ASYNC_SAVE_SNAPSHOT_H_
#define SHERD_SERIALIZATION_CHECKPOINT_ASYNC_SAVE_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/async/save_state.h"
#include "sherd/serialization/checkpoint/async/staging_ring.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint/save/saver.h"

namespace sherd {

// A stream of their own for the copies from each device.
//
// Threads. Safe.
class CopyStreams {
 public:
  CopyStreams() = default;
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;
  // Work that is queued still runs.
  ~CopyStreams();

  // The stream for `device`. Errors of DeviceRuntime.
  absl::StatusOr<DeviceStream> Of(const Device& device);

  // Lets copies from `device` that are queued from now on wait for what the
  // calling thread's current stream holds.
  absl::Status Follow(const Device& device);

  // Waits for all copies, as far as the devices work.
  void Drain();

 private:
  mutable absl::Mutex mutex_;
  std::vector<DeviceStream> streams_ ABSL_GUARDED_BY(mutex_);
};

// The elements that a rank writes in one save, on their way from its tensors to
// the file: copied in the order of the file, as there is room.
//
// Threads. Not thread-safe; Copy uses several of its own.
class SaveSnapshot {
 public:
  // The shards [begin, end) of the plan, which have room and no copy yet.
  struct Wave {
    size_t begin = 0;
    size_t end = 0;
  };

  // `budget`: as AsyncSaveOptions::staging_budget.
  SaveSnapshot(std::shared_ptr<SaveJob::Tensors> tensors,
               std::shared_ptr<const SavePlan> plan, int64_t budget);

  // Lets all copies wait for what the current streams hold now.
  absl::Status FollowCurrentStreams(CopyStreams& streams) const;

  // Gives the next shards room, as many as there is room for; an empty ring is
  // enlarged for that. A shard beyond the budget stays where it is.
  absl::StatusOr<Wave> Place(StagingRing& ring);

  // Copies a wave: from devices the copies are queued. `progress` is called on
  // this thread after each MiB that it copies, or sooner.
  absl::Status Copy(const Wave& wave, int threads, CopyStreams& streams,
                    SaveJob::Progress progress);

  const std::vector<Device>& devices() const { return devices_; }

  // Whether every shard was released, or copied, where copies() may still have
  // to run.
  bool complete() const {
    return placed_ == places_.size() && released_ >= last_direct_;
  }
  // Whether all shards have room, or need none.
  bool all_placed() const { return placed_ == places_.size(); }
  const internal::QueuedCopiesList& copies() const { return copies_; }

  // The elements of a shard that was placed: the copy, which this waits for, or
  // the tensor's own.
  absl::StatusOr<Tensor> Elements(size_t shard);

  // Of a shard of the plan, its index there.
  size_t NumberOf(const PlannedShard& shard) const;

  // Frees the room of the shards before `shard`: they are not read any more.
  void ReleaseBefore(size_t shard, StagingRing& ring);

  // The same for all of them; no shard is read any more.
  void ReleaseAll(StagingRing& ring);

  // Lets go of the tensors' elements, once all have been copied.
  void MaybeDropTensors();

 private:
  const ShardedTensor& TensorOf(const PlannedShard& shard) const {
    return *by_index_[static_cast<size_t>(shard.tensor)];
  }
  absl::StatusOr<Tensor> PartOf(const PlannedShard& shard) const;
  int64_t BytesOf(const PlannedShard& shard) const;
  Device DeviceOf(const PlannedShard& shard) const;
  absl::Status CopyOnHost(const Wave& wave, int threads,
                          SaveJob::Progress progress);
  absl::Status QueueCopies(const Wave& wave, CopyStreams& streams);
  // For messages.
  std::string Label(const PlannedShard& shard) const;

  const std::shared_ptr<SaveJob::Tensors> tensors_;
  const std::shared_ptr<const SavePlan> plan_;
  // By index in the plan.
  std::vector<ShardedTensor*> by_index_;
  // Of the shards on devices; empty: none.
  std::vector<Device> devices_;
  // What copies may take at once, and the room that they need of it.
  int64_t budget_ = std::numeric_limits<int64_t>::max();
  int64_t limit_ = 0;
  // Of each shard the copy; null: it stays where it is.
  std::vector<std::byte*> places_;
  size_t placed_ = 0;
  size_t released_ = 0;
  // Behind the last shard that stays where it is.
  size_t last_direct_ = 0;
  bool has_dropped_ = false;
  internal::QueuedCopiesList copies_;
  // The first shard of each.
  std::vector<size_t> copies_begin_;
  // How many of them were waited for.
  size_t awaited_ = 0;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_ASYNC_SAVE_SNAPSHOT_H_
