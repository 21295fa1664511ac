#include "sherd/core/comm/flight/flight_clock.h"

#include <fstream>
#include <limits>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sherd::internal {
namespace {

// Below this the rate would be mostly the error of the two readings.
constexpr int64_t kShortestMeasurement = 1'000'000;

bool CounterRunsAtOneRate() {
#if defined(__x86_64__)
  unsigned int eax, ebx, ecx, edx;
  return __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) != 0 &&
         (edx & 1u << 8) != 0;
#else
  return false;
#endif
}

// The kernel takes a counter that cores do not agree about off its list.
bool KernelTrustsCounter() {
  std::ifstream list(
      "/sys/devices/system/clocksource/clocksource0/available_clocksource");
  for (std::string name; list >> name;) {
    if (name == "tsc") return true;
  }
  return false;
}

}  // namespace

FlightClock::FlightClock()
    : uses_tsc_(CounterRunsAtOneRate() && KernelTrustsCounter()),
      origin_(ReadBoth()) {}

FlightClock::Pair FlightClock::ReadBoth() const {
  Pair best = {0, 0};
  int64_t shortest = std::numeric_limits<int64_t>::max();
  // The tightest of a few: a reading may be interrupted.
  for (int i = 0; i < 4; ++i) {
    const int64_t before = Now();
    const int64_t nanoseconds = MonotonicNow();
    const int64_t after = Now();
    if (after - before >= shortest) continue;
    shortest = after - before;
    best = {before + (after - before) / 2, nanoseconds};
  }
  return best;
}

FlightClock::Scale FlightClock::Measure() const {
  Pair now = ReadBoth();
  if (uses_tsc_) {
    while (now.nanoseconds - origin_.nanoseconds < kShortestMeasurement) {
      now = ReadBoth();
    }
  }
  Scale scale;
  scale.ticks_ = now.ticks;
  scale.nanoseconds_ = now.nanoseconds;
  scale.rate_ =
      uses_tsc_ ? static_cast<double>(now.nanoseconds - origin_.nanoseconds) /
                      static_cast<double>(now.ticks - origin_.ticks)
                : 1;
  return scale;
}

}  // namespace sherd::internal
