#ifndef SHERD_RPC_CALL_PENDING_REPLY_H_
#define SHERD_RPC_CALL_PENDING_REPLY_H_

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "sherd/rpc/call/handler_registry.h"

namespace sherd::internal {

// The reply that a handler's Future will give. The Future may never be ready,
// and belongs to the code that made it: so the data that the call needs is
// dropped once its result is no longer needed.
//
// Threads. Safe from any thread.
class PendingReply {
 public:
  struct Parts {
    ReplyFunction reply;
    std::shared_ptr<void> arguments;
  };

  // For the call that this thread handles, if any. The arguments are kept until
  // Take; if the call is cancelled before, while its CallContext
  // is held.
  static std::shared_ptr<PendingReply> Create(Parts parts);

  explicit PendingReply(Parts parts) : parts_(std::move(parts)) {}

  // Returns the parts once; empty later, and after a cancellation.
  Parts Take() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  Parts parts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_CALL_PENDING_REPLY_H_
