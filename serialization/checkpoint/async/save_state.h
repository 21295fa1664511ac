#ifndef SHERD_SERIALIZATION_CHECKPOINT_ASYNC_SAVE_STATE_H_
#define SHERD_SERIALIZATION_CHECKPOINT_ASYNC_SAVE_STATE_H_

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "sherd/core/base/completion.h"
#include "sherd/core/tensor/device_runtime.h"

namespace sherd::internal {

// The end of copies that were queued on a stream of a device.
class QueuedCopies {
 public:
  // Takes `event`, which was recorded behind the copies.
  QueuedCopies(DeviceRuntime& runtime, int device, DeviceEvent event)
      : runtime_(runtime), device_(device), event_(event) {}
  QueuedCopies(const QueuedCopies&) = delete;
  QueuedCopies& operator=(const QueuedCopies&) = delete;
  ~QueuedCopies() { runtime_.ReturnEvent(device_, event_); }

  absl::Status Await() const { return runtime_.AwaitEvent(device_, event_); }

 private:
  DeviceRuntime& runtime_;
  const int device_;
  const DeviceEvent event_;
};
using QueuedCopiesList = std::vector<std::shared_ptr<const QueuedCopies>>;

// What a save shares with its handles.
//
// Threads. Safe.
class SaveState {
 public:
  // The tensors may change after `copies`, or after an error. The first call
  // counts.
  void FinishCopying(absl::Status status, QueuedCopiesList copies = {}) {
    copied_.TryFinish({std::move(status), std::move(copies)});
  }
  // Once.
  void Finish(absl::Status status) { ended_.Finish(std::move(status)); }

  absl::Status Copied() {
    const Snapshot& snapshot = copied_.Await();
    absl::Status status = snapshot.status;
    for (const auto& copies : snapshot.copies) status.Update(copies->Await());
    return status;
  }
  absl::Status Durable() {
    const absl::Status& status = ended_.Await();
    returned_ = true;
    return status;
  }

  // Once it has ended: its result, or OK if that was returned before.
  absl::Status TakeError() {
    return returned_.exchange(true) ? absl::OkStatus() : ended_.Await();
  }

 private:
  struct Snapshot {
    absl::Status status;
    QueuedCopiesList copies;
  };

  Completion<Snapshot> copied_;
  Completion<absl::Status> ended_;
  std::atomic<bool> returned_ = false;
};

}  // namespace sherd::internal

#endif  // SHERD_SERIALIZATION_CHECKPOINT_ASYNC_SAVE_STATE_H_
