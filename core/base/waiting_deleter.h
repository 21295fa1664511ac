#ifndef SHERD_CORE_BASE_WAITING_DELETER_H_
#define SHERD_CORE_BASE_WAITING_DELETER_H_

#include <functional>
#include <memory>

#include "sherd/core/base/named_thread.h"

namespace sherd::internal {

// Calls `destroy` on a thread that is started for it. If none can be started,
// keeps `object` forever, and logs that.
void DestroyOnThread(void* object, std::function<void()> destroy);

// Deletes objects whose destructor waits for threads of the library: here, or
// on a thread of its own if the calling one is a thread of the library, which
// the destructor might wait for. So the last handle of
//
//   std::shared_ptr<T> handle(new T, WaitingDeleter());
//
// may be dropped by any function on any thread; on a thread of the program it
// has been destroyed then.
//
// Exit. A process that ends by exit() first waits a while for destructors that
// run on threads of their own; for those that need the exiting thread, in vain.
// Cost. On a thread of the library, the start of a thread.
struct WaitingDeleter {
  template <typename T>
  void operator()(T* object) const {
    if (IsLibraryThread()) {
      DestroyOnThread(object, [object] { delete object; });
    } else {
      delete object;
    }
  }
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_BASE_WAITING_DELETER_H_
