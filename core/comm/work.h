#ifndef SHERD_CORE_COMM_WORK_H_
#define SHERD_CORE_COMM_WORK_H_

#include <memory>
#include <utility>

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

  // True if the operation ended. Drives it forward where the backend needs
  // the caller for that. Never blocks.
  bool Test();

 private:
  std::shared_ptr<internal::WorkState> state_;
  absl::Status status_;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_WORK_H_
