#ifndef SHERD_RPC_CALL_CALL_CONTEXT_CONTROL_H_
#define SHERD_RPC_CALL_CALL_CONTEXT_CONTROL_H_

#include <atomic>
#include <memory>
#include <utility>

#include "sherd/rpc/call_context.h"

namespace sherd::internal {

// The changes to a call's context, for the code that runs the handler. The
// first call of Cancel and MarkAnswered counts.
//
// Threads. Cancel on any thread; the others as documented.
class CallContextControl {
 public:
  // The result is no longer needed. A holder of the context keeps the
  // arguments.
  static void Cancel(CallContext& context) {
    context.cancelled_.store(true, std::memory_order_relaxed);
    context.end_.TryFinish(CallContext::End::kCancelled);
  }

  // The handler has returned its result and no longer needs the arguments.
  // After KeepArguments, if that is called.
  static void MarkAnswered(CallContext& context) {
    if (!context.end_.TryFinish(CallContext::End::kAnswered)) return;
    context.arguments_ = nullptr;
  }

  // Keeps them until the call is answered or the context is destroyed. Called
  // by the thread that begins the handler.
  static void KeepArguments(CallContext& context,
                            std::shared_ptr<void> arguments) {
    context.arguments_ = std::move(arguments);
  }
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_CALL_CALL_CONTEXT_CONTROL_H_
