#ifndef SHERD_BACKENDS_PLUGIN_ERROR_H_
#define SHERD_BACKENDS_PLUGIN_ERROR_H_

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

// Fills `error` and returns `code`: the one way in which the backends of this
// repository report. Text that does not fit is cut.
inline sherd_code Fail(sherd_error_v0* error, sherd_code code, int peer,
                       const char* text) {
  error->peer = peer;
  std::strncpy(error->text, text, sizeof(error->text) - 1);
  error->text[sizeof(error->text) - 1] = '\0';
  return code;
}

// The same of a system call that has just failed: says errno in words, and as
// the native code.
inline sherd_code FailErrno(sherd_error_v0* error, sherd_code code, int peer,
                            const char* text) {
  const int number = errno;
  char with_cause[sizeof(error->text)];
  std::snprintf(with_cause, sizeof(with_cause), "%s: %s", text,
                std::strerror(number));
  error->native_code = number;
  return Fail(error, code, peer, with_cause);
}

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_PLUGIN_ERROR_H_
