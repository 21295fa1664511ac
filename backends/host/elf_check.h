#ifndef SHERD_BACKENDS_HOST_ELF_CHECK_H_
#define SHERD_BACKENDS_HOST_ELF_CHECK_H_

#include <string>

#include "absl/status/status.h"

namespace sherd::internal {

// Returns OK if `path` looks like a complete shared object for this machine.
//
// The dynamic linker maps a file's segments without comparing them to the
// file's length: the first access to a page beyond the end raises SIGBUS inside
// dlopen. Therefore headers and segments are compared here first.
//   kNotFound            The file does not exist.
//   kFailedPrecondition  It is not a shared object, or truncated; the message
//                        gives the reason.
absl::Status CheckSharedObject(const std::string& path);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_HOST_ELF_CHECK_H_
