#include "sherd/rpc/call/pending_reply.h"

#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "sherd/rpc/call/call_context_control.h"
#include "sherd/rpc/call_context.h"

namespace sherd::internal {

std::shared_ptr<PendingReply> PendingReply::Create(Parts parts) {
  const std::shared_ptr<CallContext>& context = CallContext::Current();
  if (context != nullptr) {
    CallContextControl::KeepArguments(*context, parts.arguments);
  }
  auto pending = std::make_shared<PendingReply>(std::move(parts));
  if (context != nullptr) {
    context->OnCancelled([weak = std::weak_ptr(pending)] {
      // Destroyed without the lock.
      if (const auto alive = weak.lock()) alive->Take();
    });
  }
  return pending;
}

PendingReply::Parts PendingReply::Take() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(parts_, {});
}

}  // namespace sherd::internal
