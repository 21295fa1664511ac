#ifndef SHERD_CORE_BASE_COMPLETION_H_
#define SHERD_CORE_BASE_COMPLETION_H_

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/shared_work.h"

namespace sherd::internal {

// The state that one operation shares with the threads that wait for it. The
// outcome is written once and published by the notification.
//
// Threads. Safe from any thread.
template <typename Outcome>
class Completion {
 public:
  Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;
  virtual ~Completion() = default;

  using Continuation = std::function<void(const Outcome&)>;
  using Continuations = std::vector<Continuation>;

  // Publishes the outcome. The result has to be called with it next, on a
  // thread on which the program's functions may run. Only where no other thread
  // completes it.
  [[nodiscard]] Continuations Complete(Outcome outcome) {
    std::optional<Continuations> all = Publish(std::move(outcome));
    SHERD_CHECK(all.has_value()) << "an operation ended twice";
    return *std::move(all);
  }

  // Complete, and then the continuations on the calling thread.
  void Finish(Outcome outcome) {
    for (const Continuation& next : Complete(std::move(outcome))) {
      next(outcome_);
    }
  }

  // Finish where several threads compete: the first outcome counts. Returns
  // whether it is this one.
  bool TryFinish(Outcome outcome) {
    const std::optional<Continuations> all = Publish(std::move(outcome));
    if (!all.has_value()) return false;
    for (const Continuation& next : *all) next(outcome_);
    return true;
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
    continuation(outcome_);
  }

  virtual bool IsDone() { return done_.HasBeenNotified(); }
  virtual const Outcome& Await() {
    done_.WaitForNotification();
    return outcome_;
  }
  // Returns null if it has not ended in time.
  const Outcome* AwaitFor(absl::Duration timeout) {
    return done_.WaitForNotificationWithTimeout(timeout) ? &outcome_ : nullptr;
  }
  // The same for a thread that takes part in the work that brings the outcome.
  const Outcome* AwaitWith(SharedWork& work, Deadline deadline) {
    SharedWork::Wait wait(work);
    {
      absl::MutexLock lock(&mutex_);
      if (done_.HasBeenNotified()) return &outcome_;
      waits_.push_back(&wait);
    }
    work.WorkUntil(wait, deadline);
    {
      // Also, so that no thread ends the wait any more.
      absl::MutexLock lock(&mutex_);
      waits_.erase(std::find(waits_.begin(), waits_.end(), &wait));
      if (done_.HasBeenNotified()) return &outcome_;
    }
    return AwaitFor(deadline.Remaining());
  }

 protected:
  const absl::Notification& done() const { return done_; }
  // After the notification.
  const Outcome& outcome() const { return outcome_; }

 private:
  std::optional<Continuations> Publish(Outcome outcome) {
    absl::MutexLock lock(&mutex_);
    if (done_.HasBeenNotified()) return std::nullopt;
    outcome_ = std::move(outcome);
    done_.Notify();
    for (SharedWork::Wait* wait : waits_) wait->End();
    return std::exchange(continuations_, {});
  }

  absl::Notification done_;
  Outcome outcome_;
  absl::Mutex mutex_;
  Continuations continuations_ ABSL_GUARDED_BY(mutex_);
  std::vector<SharedWork::Wait*> waits_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_BASE_COMPLETION_H_
