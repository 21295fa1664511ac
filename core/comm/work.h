#ifndef SHERD_CORE_COMM_WORK_H_
#define SHERD_CORE_COMM_WORK_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace sherd {

namespace internal {
class WorkState;
}  // namespace internal

// A collective that was started and may still run.
//
// Completion. Once Wait() has returned OK, or Test() true, the host may read
// the receive buffers and reuse the send buffers. Other ranks may still be
// working on their part.
//
// Lifetime. Dropping an unfinished Work is allowed: the group finishes the
// operation and joins it when it is destroyed; the buffers must live until
// then.
//
// Threads. Not thread-safe; different Works are independent.
class Work {
 public:
  // An operation that ended already.
  explicit Work(absl::Status status) : status_(std::move(status)) {}
  explicit Work(std::shared_ptr<internal::WorkState> state);
  Work(Work&&) = default;
  Work& operator=(Work&&) = default;
  ~Work();

  // Blocks until the operation has ended and returns its outcome; later calls
  // return the same at once. Bounded by the operation's deadline.
  [[nodiscard]] absl::Status Wait();

  // Makes work that is queued from now on on the calling thread's current
  // stream of the operation's device (core/tensor/device_stream.h) run after
  // the operation, and returns at once: OK does not mean that the operation
  // succeeded; Wait() and the group report that. An operation on the host's
  // memory is waited for.
  [[nodiscard]] absl::Status WaitOnStream();

  // True if the operation has ended. Drives it forward where the backend needs
  // the caller for that. Never blocks.
  bool Test();

  // Keeps `kept` until the operation has ended, even if all Works are dropped.
  // `kept` may be the last handle of any object, as in Then.
  void Keep(std::shared_ptr<const void> kept);

  // Returns a Work that ends once this one has ended and `next`, called with
  // its outcome, has returned the new outcome.
  //
  // Threads. `next` runs on the thread that ends the operation, which may be
  // one of the group's, or here if it has ended: it must not wait for
  // collectives of the group, nor call a device plugin. WaitOnStream() of the
  // new Work waits for `next`. Its captures are released before the new Work
  // ends, and live until the operation has ended even if all Works are dropped.
  // They may include the last handle of any object, the group included, which
  // is then destroyed there once its other operations have ended; and `next`
  // may call Destroy().
  [[nodiscard]] Work Then(std::function<absl::Status(absl::Status)> next) &&;

 private:
  friend Work WhenAll(std::vector<Work> works);

  std::shared_ptr<internal::WorkState> state_;
  absl::Status status_;
};

// Returns a Work that ends once all of `works` have ended. Its outcome is that
// of the first, in their order, that failed. WaitOnStream() calls that of each.
[[nodiscard]] Work WhenAll(std::vector<Work> works);

}  // namespace sherd

#endif  // SHERD_CORE_COMM_WORK_H_
