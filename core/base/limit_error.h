#ifndef SHERD_CORE_BASE_LIMIT_ERROR_H_
#define SHERD_CORE_BASE_LIMIT_ERROR_H_

#include <string>

#include "absl/status/status.h"

namespace sherd {

// kResourceExhausted says two things: this machine is short of something now,
// such as memory, space or descriptors; or what was given exceeds a limit of
// the program, for good. Who acts on it must tell them apart.

// The second one.
absl::Status LimitError(std::string message);

// Whether an error is a LimitError, also after Annotate and WithErrorInfo.
bool IsLimitError(const absl::Status& status);

}  // namespace sherd

#endif  // SHERD_CORE_BASE_LIMIT_ERROR_H_
