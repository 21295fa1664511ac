#ifndef SHERD_CORE_COMM_FLIGHT_WATCHDOG_H_
#define SHERD_CORE_COMM_FLIGHT_WATCHDOG_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/comm/flight/flight_dump.h"
#include "sherd/core/comm/flight/flight_recorder.h"

namespace sherd::internal {

// The name of its thread, which exists as long as a group is watched.
inline constexpr char kWatchdogThread[] = "sherd-watchdog";

struct WatchdogOptions {
  absl::Duration period = absl::Milliseconds(100);
  // How long after its deadline an operation may end by itself. Counted in
  // polls, so that the time does not run out while the process is stopped.
  absl::Duration grace = absl::Seconds(5);
  // SIGUSR1 writes a dump of every rank of this process.
  bool handle_signal = false;
  // Writes dumps; tests replace it.
  std::function<void(const FlightDump&)> write = [](const FlightDump& dump) {
    WriteFlightDump(dump);
  };
};

// Ends operations that their backend did not end at their deadline, from one
// thread per process that exists while a group is watched.
//
// For an operation that is overdue: takes a dump, aborts its group with
// kDeadlineExceeded, writes the dump. Once per group. It finds operations in
// the flight recorder; an operation that is not recorded there is not watched.
//
// SIGUSR1. The first group installs a handler that sets a flag and calls the
// handler that was installed before. It stays until the process ends, since a
// late signal would kill the process otherwise; without a group it does
// nothing. If the program ignores SIGUSR1, it is left ignored; a handler that
// the program installs later replaces this one; and where the signal is blocked
// in all threads (signalfd, sigwait) the handler never runs: the watchdog's
// thread blocks all signals.
//
// Threads. Safe from any thread. A child of fork that makes no call here is not
// affected.
class Watchdog {
 public:
  // The process's watchdog, over FlightRecorder::Global(). Lives forever.
  static Watchdog& Global();

  // For tests. No group may be watched when it is destroyed.
  Watchdog(FlightRecorder& recorder, WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Ends the watch when it is destroyed. The destructor waits while the group's
  // abort function runs, unless that function, or a log sink on the watchdog's
  // thread, calls it; so the caller holds no lock that the abort function
  // takes.
  class Watch {
   public:
    Watch() = default;
    Watch(Watch&& other) noexcept { *this = std::move(other); }
    Watch& operator=(Watch&& other) noexcept;
    ~Watch() { Stop(); }
    void Stop();

   private:
    friend class Watchdog;
    Watch(Watchdog* watchdog, uint64_t key) : watchdog_(watchdog), key_(key) {}

    Watchdog* watchdog_ = nullptr;
    uint64_t key_ = 0;
  };

  // Watches the operations of `group`, which outlives the watch. `abort` makes
  // them fail soon; it is called on the watchdog's thread, without a lock, at
  // most once.
  [[nodiscard]] Watch Add(const GroupTag& group,
                          std::function<void(absl::Status)> abort);

 private:
  struct Run {
    bool stop = false;
  };
  struct Watched {
    const GroupTag* group = nullptr;
    std::function<void(absl::Status)> abort;
    // The overdue operation that was seen last, and how many times in a row.
    uint64_t overdue = 0;
    int64_t looks = 0;
    bool aborted = false;
    bool in_abort = false;
  };
  struct Overdue {
    uint64_t key;
    FlightEntry entry;
  };

  void Remove(uint64_t key);
  void StartThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Main(Run& run);
  std::vector<Overdue> FindOverdue();
  void Act(const Overdue& overdue);

  FlightRecorder& recorder_;
  const WatchdogOptions options_;

  absl::Mutex mutex_;
  uint64_t last_key_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Watched> watched_ ABSL_GUARDED_BY(mutex_);
  // Null while no group is watched.
  std::shared_ptr<Run> run_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<std::thread> thread_ ABSL_GUARDED_BY(mutex_);
  // The process that `thread_` belongs to.
  std::atomic<pid_t> pid_{0};
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_FLIGHT_WATCHDOG_H_
