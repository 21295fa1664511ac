#ifndef SHERD_TESTING_KITS_SANITIZED_H_
#define SHERD_TESTING_KITS_SANITIZED_H_

#include "absl/base/config.h"

namespace sherd::testing {

// Whether AddressSanitizer or ThreadSanitizer watches this program: then it
// keeps what is freed for a while, and reserves addresses by the terabyte, so
// that nothing can be said of the memory that the program itself takes.
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_SANITIZED_H_
