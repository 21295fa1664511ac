#include "sherd/core/base/waiting_deleter.h"

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/base/keep_forever.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/named_thread.h"

namespace sherd::internal {
namespace {

// How long exit() waits at most, on a busy machine: what destructors themselves
// wait for has shorter deadlines.
constexpr absl::Duration kExit = absl::Seconds(10);

// The destructors that run on threads of their own.
class Destructors {
 public:
  // Leaked, since threads may use it during exit().
  static Destructors& Global() {
    static Destructors* const all = [] {
      auto* const made = new Destructors;
      std::atexit([] { Global().Await(); });
      return made;
    }();
    return *all;
  }

  void Begin() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    // Those of the parent run only there.
    if (pid_.exchange(getpid()) != getpid()) running_ = 0;
    ++running_;
  }
  void End() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    --running_;
  }

 private:
  void Await() ABSL_LOCKS_EXCLUDED(mutex_) {
    // They may wait for the function that called exit(). A child of fork has
    // neither the threads nor a mutex in a known state.
    if (IsLibraryThread() || pid_ != getpid()) return;
    const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return running_ == 0;
    };
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&none), kExit);
  }

  absl::Mutex mutex_;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  // The process that `running_` belongs to.
  std::atomic<pid_t> pid_{0};
};

}  // namespace

void DestroyOnThread(void* object, std::function<void()> destroy) {
  Destructors& all = Destructors::Global();
  all.Begin();
  absl::StatusOr<std::thread> thread =
      StartNamedThread("sherd-destroy", [&all, destroy = std::move(destroy)] {
        destroy();
        all.End();
      });
  if (thread.ok()) return thread->detach();
  all.End();
  SHERD_LOG(kError) << thread.status().message()
                    << "; an object is kept that was to be destroyed on it";
  KeepForever(std::shared_ptr<const void>(object, [](const void*) {}));
}

}  // namespace sherd::internal
