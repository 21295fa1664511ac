#ifndef SHERD_TOOLS_SHERD_COMMAND_ERROR_H_
#define SHERD_TOOLS_SHERD_COMMAND_ERROR_H_

#include <cstdio>

#include "absl/status/status.h"
#include "sherd/core/base/printable_text.h"

namespace sherd {

// Prints "sherd COMMAND: message" to standard error. Returns the exit code, 1.
inline int PrintCommandError(const char* command, const absl::Status& status) {
  std::fprintf(stderr, "sherd %s: %s\n", command,
               PrintableText(status.message()).c_str());
  return 1;
}

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_COMMAND_ERROR_H_
