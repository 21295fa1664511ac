#ifndef SHERD_CORE_BASE_DEADLINE_H_
#define SHERD_CORE_BASE_DEADLINE_H_

#include <chrono>

#include "absl/time/time.h"

namespace sherd {

// A point in time after which an operation gives up, on the monotonic clock:
// setting the wall clock neither shortens nor prolongs a wait. A value type;
// may be copied between threads.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // Never passes.
  static Deadline Infinite() { return Deadline(Clock::time_point::max()); }

  // `timeout` from now. A negative timeout has passed already, an infinite or
  // very long one never passes.
  static Deadline After(absl::Duration timeout) {
    if (timeout >= kLongest) return Infinite();
    return Deadline(Clock::now() + absl::ToChronoNanoseconds(timeout));
  }

  static Deadline Earlier(Deadline a, Deadline b) {
    return a.when_ < b.when_ ? a : b;
  }

  bool IsInfinite() const { return when_ == Clock::time_point::max(); }
  bool HasPassed() const { return !IsInfinite() && Clock::now() >= when_; }

  // Time left: zero once passed, absl::InfiniteDuration() if infinite.
  absl::Duration Remaining() const {
    if (IsInfinite()) return absl::InfiniteDuration();
    const auto left = when_ - Clock::now();
    return left.count() <= 0 ? absl::ZeroDuration() : absl::FromChrono(left);
  }

  Clock::time_point when() const { return when_; }

 private:
  // A hundred years: far from the clock's overflow, longer than any run.
  static constexpr absl::Duration kLongest = absl::Hours(24 * 36525);

  explicit Deadline(Clock::time_point when) : when_(when) {}

  Clock::time_point when_;
};

}  // namespace sherd

#endif  // SHERD_CORE_BASE_DEADLINE_H_
