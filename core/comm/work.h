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
// the receive buffers and reuse the send buffers. That says nothing about other
// ranks, which may still be at it.
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

  // Blocks until the operation ended and returns its outcome; again at once if
  // called again. Bounded by the operation's deadline.
  [[nodiscard]] absl::Status Wait();

  // Makes what is queued from now on on the calling thread's current stream of
  // the operation's device (core/tensor/device_stream.h) run after the
  // operation, and returns at once: OK does not say that it ended well, which
  // Wait() and the group do. An operation on the host's memory is waited for.
  [[nodiscard]] absl::Status WaitOnStream();

  // True if the operation ended. Drives it forward where the backend needs
  // the caller for that. Never blocks.
  bool Test();

  // Keeps `kept` until the operation ended, even if all Works were dropped. It
  // may be the last handle of anything, as in Then.
  void Keep(std::shared_ptr<const void> kept);

  // A Work that ends once this one has and `next`, called with its outcome,
  // has returned what becomes the new outcome.
  //
  // Threads. `next` runs on the thread that ends the operation, which may be
  // one of the group's, or here if it has ended: it must not wait for
  // collectives of the group, nor call a device plugin. WaitOnStream() of the
  // new Work waits for `next`. What it captured is released before the new Work
  // ends, and lives until the operation ended even if all Works were dropped.
  // The last handle of anything may be among it, that of the group too, which
  // is then destroyed there once its other operations have ended; and `next`
  // may call Destroy().
  [[nodiscard]] Work Then(std::function<absl::Status(absl::Status)> next) &&;

 private:
  friend Work WhenAll(std::vector<Work> works);

  std::shared_ptr<internal::WorkState> state_;
  absl::Status status_;
};

// Ends once all of `works` have. Its outcome is that of the first, in their
// order, that failed. WaitOnStream() is that of each.
[[nodiscard]] Work WhenAll(std::vector<Work> works);

}  // namespace sherd

#endif  // SHERD_CORE_COMM_WORK_H_
