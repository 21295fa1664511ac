#ifndef SHERD_CORE_COMM_CHANNEL_WORK_STATE_H_
#define SHERD_CORE_COMM_CHANNEL_WORK_STATE_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace sherd::internal {

// Shared between a Work and the queue that runs its operation. The outcome is
// written once and published by the notification.
class WorkState {
 public:
  WorkState() = default;
  WorkState(const WorkState&) = delete;
  WorkState& operator=(const WorkState&) = delete;
  virtual ~WorkState() = default;

  using Continuation = std::function<void(const absl::Status&)>;
  using Continuations = std::vector<Continuation>;

  // Publishes the outcome. The caller must then call the returned continuations
  // with it, on a thread on which the program's functions may run.
  [[nodiscard]] Continuations Complete(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    status_ = std::move(status);
    done_.Notify();
    return std::exchange(continuations_, {});
  }

  // Completes and runs the continuations, on the calling thread.
  void Finish(absl::Status status) {
    for (const Continuation& next : Complete(std::move(status))) next(status_);
  }

  // Calls `continuation` once the outcome is published, or at once if it is.
  void OnFinish(Continuation continuation) {
    {
      absl::MutexLock lock(&mutex_);
      if (!done_.HasBeenNotified()) {
        continuations_.push_back(std::move(continuation));
        return;
      }
    }
    continuation(status_);
  }

  // Keeps `kept` alive until the operation has ended.
  virtual void Keep(std::shared_ptr<const void> kept) {
    OnFinish([kept = std::move(kept)](const absl::Status&) {});
  }

  virtual bool IsDone() { return done_.HasBeenNotified(); }
  virtual const absl::Status& Await() {
    done_.WaitForNotification();
    return status_;
  }
  // As Work::WaitOnStream.
  virtual absl::Status AwaitOnStream() { return Await(); }

 protected:
  const absl::Notification& done() const { return done_; }
  // Valid after the outcome is published.
  const absl::Status& status() const { return status_; }

 private:
  absl::Notification done_;
  absl::Status status_;
  absl::Mutex mutex_;
  Continuations continuations_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_WORK_STATE_H_
