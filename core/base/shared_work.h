#ifndef SHERD_CORE_BASE_SHARED_WORK_H_
#define SHERD_CORE_BASE_SHARED_WORK_H_

#include <atomic>
#include <functional>

#include "sherd/core/base/deadline.h"

namespace sherd::internal {

// Work such as running a loop, in which any thread may take part while it waits
// for a result of that work: the result then reaches it without a second thread
// that would have to wake it.
//
// Threads. Safe from any thread.
class SharedWork {
 public:
  // A thread's wait, which other threads may end. Lives until none of them can
  // end it any more, no longer than the work.
  class Wait {
   public:
    explicit Wait(SharedWork& work) : work_(work) {}
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

    void End() {
      ended_.store(true, std::memory_order_seq_cst);
      if (sleeps_.load(std::memory_order_seq_cst)) work_.Wake();
    }
    bool has_ended() const { return ended_.load(std::memory_order_seq_cst); }

    // Called by the work before it sleeps; Wake ends the sleep. False: the wait
    // has ended, do not sleep.
    bool BeginSleep() {
      sleeps_.store(true, std::memory_order_seq_cst);
      if (!has_ended()) return true;
      EndSleep();
      return false;
    }
    bool sleeps() const { return sleeps_.load(std::memory_order_seq_cst); }
    void EndSleep() { sleeps_.store(false, std::memory_order_relaxed); }

   private:
    SharedWork& work_;
    std::atomic<bool> ended_{false};
    std::atomic<bool> sleeps_{false};
  };

  virtual ~SharedWork() = default;

  // Works on the calling thread until `wait` has ended or the deadline has
  // passed, about a millisecond late. False: this thread cannot take part,
  // since another one does, or the work is over; maybe not at once.
  virtual bool WorkUntil(Wait& wait, Deadline deadline) = 0;

  // Called by Wait: ends the sleep of the thread that takes part.
  virtual void Wake() = 0;

  // Whether the calling thread runs a function of the work. Then Defer runs
  // `task` on it once that function has returned.
  virtual bool RunsHere() const { return false; }
  virtual void Defer(std::function<void()> task) { task(); }
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_BASE_SHARED_WORK_H_
