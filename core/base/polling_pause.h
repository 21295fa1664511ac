#ifndef SHERD_CORE_BASE_POLLING_PAUSE_H_
#define SHERD_CORE_BASE_POLLING_PAUSE_H_

#include <sched.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sherd::internal {

// The time between two polls for one answer: yields while the answer is likely
// near, then sleeps, so that threads which outnumber the cores do not take them
// from each other.
class PollingPause {
 public:
  PollingPause(int yields, absl::Duration sleep)
      : yields_(yields), sleep_(sleep) {}

  void operator()() {
    if (yields_ > 0) {
      --yields_;
      sched_yield();
    } else {
      absl::SleepFor(sleep_);
    }
  }

 private:
  // That are left.
  int yields_;
  const absl::Duration sleep_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_BASE_POLLING_PAUSE_H_
