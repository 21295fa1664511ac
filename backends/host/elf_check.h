#ifndef SHERD_BACKENDS_HOST_ELF_CHECK_H_
#define SHERD_BACKENDS_HOST_ELF_CHECK_H_

#include <string>

#include "absl/status/status.h"

namespace sherd::internal {

// OK if `path` looks like a whole shared object for this machine.
//
// The dynamic linker maps a file's segments without comparing them to the
// file's length: the first touch of a page beyond the end is a SIGBUS inside
// dlopen. So headers and segments are compared here first.
//   kNotFound            There is no such file.
//   kFailedPrecondition  It is not one, or cut short; says how.
absl::Status CheckSharedObject(const std::string& path);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_HOST_ELF_CHECK_H_
