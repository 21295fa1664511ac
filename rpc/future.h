#ifndef SHERD_RPC_FUTURE_H_
#define SHERD_RPC_FUTURE_H_

#include <algorithm>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/base/completion.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/scoped_blocked.h"
#include "sherd/core/base/shared_work.h"

namespace sherd {

// The result of a Future<T>: an absl::StatusOr<T>, or absl::Status for void.
template <typename T>
struct FutureTypes {
  static_assert(std::copy_constructible<T>,
                "all handles of a Future read one result: T is copied");
  using Result = absl::StatusOr<T>;
};
template <>
struct FutureTypes<void> {
  using Result = absl::Status;
};
template <typename T>
using FutureResult = typename FutureTypes<T>::Result;

template <typename T>
class Promise;

namespace internal {

template <typename T>
struct FutureOutcome {
  FutureResult<T> result;
  // By Future::Cancel.
  bool cancelled = false;
};
template <typename T>
struct FutureState : Completion<FutureOutcome<T>> {
  // The work that may bring the result; or null.
  std::shared_ptr<SharedWork> work;
};

absl::Status FutureTimedOut(absl::Duration timeout);
absl::Status FutureCancelled();
absl::Status PromiseBroken();

}  // namespace internal

// A result that may not be available yet.
//
// Value. A handle: copies wait for the same result, also after one of them was
// moved from. Dropping all of them does not end the operation; only Cancel()
// requests that.
//
// Threads. Safe from any thread.
template <typename T>
class Future {
 public:
  using Result = FutureResult<T>;

  // A Future that is ready: a function that returns a Future can
  // `return status;`.
  Future(Result result)  // NOLINT(google-explicit-constructor)
      : state_(std::make_shared<internal::FutureState<T>>()) {
    state_->Finish({std::move(result)});
  }
  Future(absl::Status status)  // NOLINT(google-explicit-constructor)
      requires(!std::is_void_v<T>)
      : Future(Result(std::move(status))) {}

  // Not movable: a moved-from handle would have no result.
  Future(const Future&) = default;
  Future& operator=(const Future&) = default;

  // Blocks until there is a result, and returns it; further calls return it at
  // once. The deadline of the operation, which every call has, bounds the wait.
  //   kCancelled  Cancel() ended it.
  //   kInternal   The operation was dropped without a result: a bug in the
  //               holder of the Promise.
  //   other       The operation's error.
  // A thread that waits for a call receives messages of RPC meanwhile, and may
  // run functions that wait for other results (OnReady): it must hold no lock
  // that such a function takes.
  Result Wait() const {
    // A function that runs meanwhile may drop this handle.
    const auto state = state_;
    return Await(*state, absl::InfiniteDuration())->result;
  }

  // The same, for at most `timeout`.
  //   kDeadlineExceeded  There is no result yet; the operation continues, and
  //                      this can be called again. The operation may also end
  //                      with this code: then Ready() is true.
  Result Wait(absl::Duration timeout) const {
    const auto state = state_;
    const internal::FutureOutcome<T>* const outcome = Await(*state, timeout);
    if (outcome == nullptr) return internal::FutureTimedOut(timeout);
    return outcome->result;
  }

  // Whether Wait() would return at once. Never blocks.
  bool Ready() const { return state_->IsDone(); }

  // Makes kCancelled the result, at once, unless there is one, and asks the
  // operation to end; its own result is then dropped. Returns whether it did.
  // Functions that wait for the result (OnReady) run on the calling thread.
  bool Cancel() const {
    // A function that runs may drop this handle, here and below.
    const auto state = state_;
    return state->TryFinish({internal::FutureCancelled(), true});
  }

  // Calls `f` with the result, exactly once: on the thread that completes it,
  // which may be one of RPC's, or here if there is a result already, perhaps
  // before functions that were added earlier. Until then functions run in the
  // order in which they were added; a thread in Wait() may return before. `f`
  // must not wait for other calls, nor take long: other messages may wait
  // meanwhile. If it throws, the process ends. It is released after it ran.
  void OnReady(std::function<void(const Result&)> f) const {
    const auto state = state_;
    state->OnFinish(
        [f = std::move(f)](const internal::FutureOutcome<T>& outcome) noexcept {
          f(outcome.result);
        });
  }

 private:
  friend class Promise<T>;
  explicit Future(std::shared_ptr<internal::FutureState<T>> state)
      : state_(std::move(state)) {}

  static const internal::FutureOutcome<T>* Await(
      internal::FutureState<T>& state, absl::Duration timeout) {
    std::optional<internal::ScopedBlocked> blocked;
    if (!state.IsDone()) blocked.emplace();
    if (state.work == nullptr) return state.AwaitFor(timeout);
    return state.AwaitWith(
        *state.work, Deadline::After(std::max(timeout, absl::ZeroDuration())));
  }

  std::shared_ptr<internal::FutureState<T>> state_;
};

// Completes a Future: for handlers whose result comes later.
//
// Value. A handle: copies complete the same Future, and the first result
// counts. When the last is destroyed without one, the Future ends with
// kInternal, so that no thread waits for ever. A moved-from Promise can only be
// assigned or destroyed.
//
// Threads. Safe from any thread.
template <typename T>
class Promise {
 public:
  using Result = FutureResult<T>;

  Promise() : share_(std::make_shared<Share>()) {}
  // `work` may bring the result: a thread that waits for it takes part.
  explicit Promise(std::shared_ptr<internal::SharedWork> work) : Promise() {
    share_->state->work = std::move(work);
  }

  Future<T> future() const { return Future<T>(share_->state); }

  // Completes the Future and runs the functions that wait for it on the calling
  // thread. Returns false if it has a result already, as after Cancel(), and
  // drops `result`.
  bool Set(Result result) const {
    const auto state = share_->state;
    return state->TryFinish({std::move(result)});
  }

  // Calls `f` if the Future is cancelled, once and on the thread that cancels
  // it, or here if it was. Released when there is a result. If it throws, the
  // process ends. `f` may hold this Promise only if that is set eventually:
  // otherwise the two keep each other alive.
  void OnCancel(std::function<void()> f) const {
    const auto state = share_->state;
    state->OnFinish(
        [f = std::move(f)](const internal::FutureOutcome<T>& outcome) noexcept {
          if (outcome.cancelled) f();
        });
  }

 private:
  struct Share {
    ~Share() { state->TryFinish({internal::PromiseBroken()}); }
    const std::shared_ptr<internal::FutureState<T>> state =
        std::make_shared<internal::FutureState<T>>();
  };

  std::shared_ptr<const Share> share_;
};

}  // namespace sherd

#endif  // SHERD_RPC_FUTURE_H_
