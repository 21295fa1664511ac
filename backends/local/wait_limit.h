#ifndef SHERD_BACKENDS_LOCAL_WAIT_LIMIT_H_
#define SHERD_BACKENDS_LOCAL_WAIT_LIMIT_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

// Waits until `done`; false at the deadline.
template <typename Done>
bool WaitUntil(std::condition_variable& changed,
               std::unique_lock<std::mutex>& lock, int64_t deadline,
               Done done) {
  if (deadline == SHERD_NO_DEADLINE) {
    changed.wait(lock, done);
    return true;
  }
  return changed.wait_until(
      lock,
      std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline)),
      done);
}

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_LOCAL_WAIT_LIMIT_H_
