#ifndef SHERD_RPC_ENGINE_CALL_DEADLINES_H_
#define SHERD_RPC_ENGINE_CALL_DEADLINES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/deadline.h"

namespace sherd::internal {

// A thread that looks through the calls under way when the earliest deadline
// passes. Deadlines are not kept here, since nearly all calls end long before:
// a look finds what has expired and says when the next one is worth it.
//
// Threads. Safe from any thread.
// Cost. Watch: a load, unless the deadline is earlier than all others. The
// thread sleeps while no call with a deadline is under way, but for one look
// after the last one.
class CallDeadlines {
 public:
  // Ends what has expired by `now`, and returns the earliest deadline of the
  // rest. Runs on the thread of this object, one at a time.
  using Look = std::function<Deadline(Deadline::Clock::time_point now)>;

  explicit CallDeadlines(Look look) : look_(std::move(look)) {}
  ~CallDeadlines() { Stop(); }
  CallDeadlines(const CallDeadlines&) = delete;
  CallDeadlines& operator=(const CallDeadlines&) = delete;

  // The first call starts the thread.
  //   kResourceExhausted  There is no thread: the deadline is not watched.
  absl::Status Watch(Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the thread, on which it is not called; nothing is watched any more.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Ticks = Deadline::Clock::duration::rep;

  void Main() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status WatchEarlier(Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  const Look look_;
  // When the thread looks next.
  std::atomic<Ticks> next_{
      Deadline::Infinite().when().time_since_epoch().count()};
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_CALL_DEADLINES_H_
