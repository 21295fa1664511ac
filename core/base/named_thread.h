#ifndef SHERD_CORE_BASE_NAMED_THREAD_H_
#define SHERD_CORE_BASE_NAMED_THREAD_H_

#include <functional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace sherd {

// Starts a thread of the library's own: tools show it as `name`, of which 15
// characters count, and signals are blocked in it, since they are for threads
// of the program, but for those that it causes itself.
//   kResourceExhausted  No thread is left; says why.
absl::StatusOr<std::thread> StartNamedThread(const std::string& name,
                                             std::function<void()> body);

}  // namespace sherd

#endif  // SHERD_CORE_BASE_NAMED_THREAD_H_
