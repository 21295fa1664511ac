#ifndef SHERD_TESTING_KITS_HANG_SECONDS_H_
#define SHERD_TESTING_KITS_HANG_SECONDS_H_

#include "sherd/testing/kits/sanitized.h"

namespace sherd::testing {

// The time limit of the broken tests that hang: their ranks must have come to
// where they hang before, and ThreadSanitizer makes them slow.
inline constexpr int kHangSeconds = kIsSanitized ? 10 : 2;

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_HANG_SECONDS_H_
