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

// Looks after what groups have queued on devices, from one thread per process
// that exists while there is such a group and sleeps a while after the last
// operation ended.
//
// Exit. The thread ends before the vendor's library does: at exit() it is
// stopped by a handler that the first group installs.
//
// Threads. Safe from any thread. A child of fork that does not call it is not
// affected.
class DeviceWatch {
 public:
  class Watched {
   public:
    virtual ~Watched() = default;

    enum class Sight { kNothing, kWaiting, kProgress };
    // Sees to what is in flight. On the watch's thread, without a lock of it.
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
  // Returns once its Look does not run, unless it is Look that calls this.
  void Remove(const Watched* watched);

  // Something is in flight now. No more than a load unless the thread sleeps.
  void Wake() {
    if (asleep_.load(std::memory_order_seq_cst)) [[unlikely]] {
      WakeThread();
    }
  }

  // For tests: nothing is looked at until there is something in flight.
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
  // Whose Look runs.
  const Watched* looked_at_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::shared_ptr<Run> run_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<std::thread> thread_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> asleep_{false};
  // The process that `thread_` belongs to.
  std::atomic<pid_t> pid_{0};
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_DEVICE_WATCH_H_
