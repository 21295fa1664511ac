#ifndef SHERD_RPC_CALL_CALL_CONTEXT_CONTROL_H_
#define SHERD_RPC_CALL_CALL_CONTEXT_CONTROL_H_

#include <atomic>
#include <memory>
#include <utility>

#include "sherd/rpc/call_context.h"

namespace sherd::internal {

// What is done to the context of a call by those who run the handler, and not
// by handlers. The first one of Cancel and MarkAnswered counts.
//
// Threads. Cancel on any thread; the others as they say.
class CallContextControl {
 public:
  // Nobody waits for the result any more. Who holds the context goes on with
  // the arguments.
  static void Cancel(CallContext& context) {
    context.cancelled_.store(true, std::memory_order_relaxed);
    context.end_.TryFinish(CallContext::End::kCancelled);
  }

  // The handler has given its result, which needs the arguments no more. After
  // KeepArguments, if that is called.
  static void MarkAnswered(CallContext& context) {
    if (!context.end_.TryFinish(CallContext::End::kAnswered)) return;
    context.arguments_ = nullptr;
  }

  // Until the call is answered or the context goes. By the thread that begins
  // the handler.
  static void KeepArguments(CallContext& context,
                            std::shared_ptr<void> arguments) {
    context.arguments_ = std::move(arguments);
  }
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_CALL_CALL_CONTEXT_CONTROL_H_
