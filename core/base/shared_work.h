#ifndef SHERD_CORE_BASE_SHARED_WORK_H_
#define SHERD_CORE_BASE_SHARED_WORK_H_

#include <atomic>

#include "sherd/core/base/deadline.h"

namespace sherd::internal {

// Work that comes from outside, such as a loop's, and that any thread may take
// part in while it waits: what it waits for then reaches it without a second
// thread, which would have to wake it.
//
// Threads. Safe from any thread.
class SharedWork {
 public:
  // A thread's wait, which others may end. Lives until nobody ends it any more,
  // no longer than the work.
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

    // Of the work: around what Wake ends. False: it has ended, sleep not.
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
  // passed, about a millisecond late. False: there is nothing to take part in,
  // since another thread does, or it is over; maybe not at once.
  virtual bool WorkUntil(Wait& wait, Deadline deadline) = 0;

  // Of Wait: ends the sleep of the thread that takes part.
  virtual void Wake() = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_BASE_SHARED_WORK_H_
