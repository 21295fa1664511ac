#ifndef SHERD_BACKENDS_GLOO_WAIT_LIMITS_H_
#define SHERD_BACKENDS_GLOO_WAIT_LIMITS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

// Deadlines of the plugin ABI as Gloo's timeouts.

// Longer than any run, short enough for Gloo's arithmetic.
inline constexpr std::chrono::milliseconds kForever =
    std::chrono::hours(24 * 365);

// Time left, at least 1 ms: Gloo takes 0 as "no limit".
inline std::chrono::milliseconds Remaining(int64_t deadline) {
  using std::chrono::milliseconds;
  using std::chrono::steady_clock;
  if (deadline == SHERD_NO_DEADLINE) return kForever;
  const auto left =
      steady_clock::time_point(std::chrono::nanoseconds(deadline)) -
      steady_clock::now();
  return std::clamp(
      std::chrono::duration_cast<milliseconds>(left) + milliseconds(1),
      milliseconds(1), kForever);
}

inline bool HasPassed(int64_t deadline) {
  using std::chrono::steady_clock;
  return deadline != SHERD_NO_DEADLINE &&
         steady_clock::now() >=
             steady_clock::time_point(std::chrono::nanoseconds(deadline));
}

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_GLOO_WAIT_LIMITS_H_
