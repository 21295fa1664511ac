#ifndef SHERD_CORE_BASE_NAMED_THREAD_H_
#define SHERD_CORE_BASE_NAMED_THREAD_H_

#include <functional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace sherd {

// Starts a thread of the library: tools show it as `name`, up to 15 characters,
// and signals are blocked in it, since they are for threads of the program,
// except those that the thread itself causes.
//   kResourceExhausted  No thread is left; the message has the reason.
absl::StatusOr<std::thread> StartNamedThread(const std::string& name,
                                             std::function<void()> body);

namespace internal {

// Whether other threads may wait for the function that the calling thread runs:
// StartNamedThread started the thread, or it is in a ScopedLibraryThread. Such
// a function must not wait for those threads in its turn.
bool IsLibraryThread();

// Makes the calling thread one of the library's. Put around functions, of the
// program too, that any thread runs for others which may wait for them.
class ScopedLibraryThread {
 public:
  ScopedLibraryThread();
  ~ScopedLibraryThread();
  ScopedLibraryThread(const ScopedLibraryThread&) = delete;
  ScopedLibraryThread& operator=(const ScopedLibraryThread&) = delete;
};

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_BASE_NAMED_THREAD_H_
