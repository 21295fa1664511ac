#ifndef SHERD_TESTING_KITS_SANITIZED_H_
#define SHERD_TESTING_KITS_SANITIZED_H_

#include "absl/base/config.h"

namespace sherd::testing {

// Whether AddressSanitizer or ThreadSanitizer instruments this program: then
// freed memory is kept for a while, and terabytes of addresses are reserved, so
// that the program's own use of memory cannot be measured.
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_SANITIZED_H_
