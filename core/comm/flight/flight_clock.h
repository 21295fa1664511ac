#ifndef SHERD_CORE_COMM_FLIGHT_FLIGHT_CLOCK_H_
#define SHERD_CORE_COMM_FLIGHT_FLIGHT_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace sherd::internal {

// Time stamps that cost a few nanoseconds: the processor's time stamp counter
// where it runs at one rate on all cores and the kernel trusts it, otherwise
// the monotonic clock. For records only: no decision depends on it.
//
// Threads. Safe from any thread.
class FlightClock {
 public:
  // Measures the rate of ticks from its construction on.
  FlightClock();

  int64_t Now() const {
#if defined(__x86_64__)
    // The builtin, since <x86intrin.h> is slow to parse.
    if (uses_tsc_) return static_cast<int64_t>(__builtin_ia32_rdtsc());
#endif
    return MonotonicNow();
  }

  // Converts between ticks and nanoseconds, as measured up to its creation.
  class Scale {
   public:
    // Nanoseconds of the monotonic clock at `ticks`.
    int64_t ToMonotonic(int64_t ticks) const {
      return nanoseconds_ + ToNanoseconds(ticks - ticks_);
    }
    int64_t ToNanoseconds(int64_t ticks) const {
      return static_cast<int64_t>(static_cast<double>(ticks) * rate_);
    }

   private:
    friend class FlightClock;
    int64_t ticks_;
    int64_t nanoseconds_;
    double rate_;
  };

  Scale Measure() const;

  // "tsc" or "monotonic".
  const char* source() const { return uses_tsc_ ? "tsc" : "monotonic"; }

  static int64_t MonotonicNow() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  struct Pair {
    int64_t ticks;
    int64_t nanoseconds;
  };
  Pair ReadBoth() const;

  const bool uses_tsc_;
  const Pair origin_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_FLIGHT_FLIGHT_CLOCK_H_
