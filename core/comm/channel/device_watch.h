#ifndef SHERD_CORE_COMM_CHANNEL_DEVICE_WATCH_H_
#define SHERD_CORE_COMM_CHANNEL_DEVICE_WATCH_H_

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sherd::internal {

// The name of its thread.
inline constexpr char kDeviceWatchThread[] = "sherd-devices";

// Watches the operations that groups have queued on devices, from one thread
// per process. The thread exists while there is such a group, and goes to sleep
// a while after the last operation has ended.
//
// Exit. The thread ends before the vendor's library is unloaded: a handler that
// the first group installs stops it at exit().
//
// Threads. Safe from any thread. A child of fork that makes no call here is not
// affected.
class DeviceWatch {
 public:
  class Watched {
   public:
    virtual ~Watched() = default;

    enum class Sight { kNothing, kWaiting, kProgress };
    // Checks the operations in flight. Called on the watch's thread, which
    // holds no lock of its own then.
    virtual Sight Look() = 0;
  };

  // Lives forever.
  static DeviceWatch& Global();

  DeviceWatch() = default;
  // For tests. Nothing may be watched.
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  void Add(std::shared_ptr<Watched> watched);
  // Returns once `watched`'s Look does not run, unless Look itself calls this.
  void Remove(const Watched* watched);

  // Called when an operation is in flight. Costs a load unless the thread
  // sleeps.
  void Wake() {
    if (asleep_.load(std::memory_order_seq_cst)) [[unlikely]] {
      WakeThread();
    }
  }

  // For tests: whether the thread sleeps until an operation is in flight.
  bool IsAsleep() const { return asleep_.load(std::memory_order_seq_cst); }

 private:
  struct Run {
    bool stop = false;
  };

  void WakeThread();
  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Stop();
  void Main(Run& run);
  Watched::Sight LookAtAll();

  absl::Mutex mutex_;
  std::vector<std::shared_ptr<Watched>> watched_ ABSL_GUARDED_BY(mutex_);
  // The group whose Look runs.
  const Watched* looked_at_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::shared_ptr<Run> run_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<std::thread> thread_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> asleep_{false};
  // The process that `thread_` belongs to.
  std::atomic<pid_t> pid_{0};
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_DEVICE_WATCH_H_
