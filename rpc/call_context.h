#ifndef SHERD_RPC_CALL_CONTEXT_H_
#define SHERD_RPC_CALL_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "sherd/core/base/completion.h"
#include "sherd/core/base/deadline.h"

namespace sherd {
namespace internal {
class CallContextControl;
}  // namespace internal

// The call that a handler works on: its caller, its deadline, and whether the
// caller still waits.
//
// Inheritance. Calls that a handler makes end at its own deadline at the
// latest, and are cancelled with it. Both hold for the thread on which the
// handler was started; a handler that continues on another thread takes
// Current() along and installs it there with a ScopedCallContext.
//
// Value. If the handler returned a Future, a context keeps the arguments of its
// call alive until the call is answered; see RegisterHandler.
//
// Threads. Safe from any thread.
class CallContext {
 public:
  CallContext(int caller, uint64_t call, std::string method, Deadline deadline)
      : caller_(caller),
        call_(call),
        method_(std::move(method)),
        deadline_(deadline) {}

  // The context of the call that this thread handles, or null.
  static const std::shared_ptr<CallContext>& Current();

  // Rank of the caller, and the number that it gave the call.
  int caller() const { return caller_; }
  uint64_t call() const { return call_; }
  absl::string_view method() const { return method_; }
  Deadline deadline() const { return deadline_; }

  // Whether the result is no longer needed: the caller cancelled, its deadline
  // passed, or it is lost; or this worker shuts down. A handler that takes long
  // checks it now and then, and may return anything.
  bool cancelled() const {
    return cancelled_.load(std::memory_order_relaxed) || deadline_.HasPassed();
  }

  // Calls `f` once the call is cancelled: on the thread that notices it, which
  // may be one of RPC's, or here if it is cancelled already. Several run in the
  // order in which they were added. Released uncalled when the call is
  // answered. `f` must not wait for other calls, nor take long; if it throws,
  // the process ends.
  void OnCancelled(std::function<void()> f) {
    end_.OnFinish([f = std::move(f)](const End& end) noexcept {
      if (end == End::kCancelled) f();
    });
  }

 private:
  friend class internal::CallContextControl;

  enum class End { kAnswered, kCancelled };

  const int caller_;
  const uint64_t call_;
  const std::string method_;
  const Deadline deadline_;
  std::atomic<bool> cancelled_{false};
  std::shared_ptr<void> arguments_;
  internal::Completion<End> end_;
};

// Makes `context` the calling thread's context until the end of the scope.
class ScopedCallContext {
 public:
  explicit ScopedCallContext(std::shared_ptr<CallContext> context);
  ~ScopedCallContext();
  ScopedCallContext(const ScopedCallContext&) = delete;
  ScopedCallContext& operator=(const ScopedCallContext&) = delete;

 private:
  std::shared_ptr<CallContext> before_;
};

}  // namespace sherd

#endif  // SHERD_RPC_CALL_CONTEXT_H_
