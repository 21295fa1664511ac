#ifndef SHERD_CORE_COMM_WORK_STATE_H_
#define SHERD_CORE_COMM_WORK_STATE_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"

namespace sherd::internal {

// Shared between a Work and the queue that runs its operation. The outcome is
// written once and published by the notification.
class WorkState {
 public:
  void Finish(absl::Status status) {
    status_ = std::move(status);
    done_.Notify();
  }
  bool IsDone() const { return done_.HasBeenNotified(); }
  const absl::Status& Await() const {
    done_.WaitForNotification();
    return status_;
  }

 private:
  absl::Notification done_;
  absl::Status status_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_WORK_STATE_H_
