#ifndef SHERD_SERIALIZATION_CHECKPOINT_PHASE_CLOCK_H_
#define SHERD_SERIALIZATION_CHECKPOINT_PHASE_CLOCK_H_

#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sherd {

// Divides the time of a save or load into phases.
class PhaseClock {
 public:
  // Adds the time since the end of the last phase, or since this began.
  void End(absl::Duration& phase) {
    const absl::Time now = absl::Now();
    phase += now - std::exchange(begin_, now);
  }
  // Ends one that nobody asks for.
  void End() { begin_ = absl::Now(); }

 private:
  absl::Time begin_ = absl::Now();
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_PHASE_CLOCK_H_
