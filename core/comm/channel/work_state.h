#ifndef SHERD_CORE_COMM_CHANNEL_WORK_STATE_H_
#define SHERD_CORE_COMM_CHANNEL_WORK_STATE_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "sherd/core/base/completion.h"

namespace sherd::internal {

// Shared between a Work and the queue that runs its operation.
class WorkState : public Completion<absl::Status> {
 public:
  // Keeps `kept` alive until the operation has ended.
  virtual void Keep(std::shared_ptr<const void> kept) {
    OnFinish([kept = std::move(kept)](const absl::Status&) {});
  }

  // As Work::WaitOnStream.
  virtual absl::Status AwaitOnStream() { return Await(); }

 protected:
  // Valid after the outcome is published.
  const absl::Status& status() const { return outcome(); }
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_WORK_STATE_H_
