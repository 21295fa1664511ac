#ifndef SHERD_BACKENDS_PLUGIN_ERROR_H_
#define SHERD_BACKENDS_PLUGIN_ERROR_H_

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

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_PLUGIN_ERROR_H_
