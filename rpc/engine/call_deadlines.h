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

// A thread that checks the calls under way when the earliest deadline passes.
// Deadlines are not stored here, since nearly all calls end long before: a look
// ends the calls that have expired and returns when the next look is due.
//
// Threads. Safe from any thread.
// Cost. Watch: a load, unless the deadline is earlier than all others. The
// thread sleeps while no call with a deadline is under way, except for one look
// after the last call.
class CallDeadlines {
 public:
  // Ends the calls that have expired by `now`, and returns the earliest
  // deadline of the rest. Runs on the thread of this object, one at a time.
  using Look = std::function<Deadline(Deadline::Clock::time_point now)>;

  explicit CallDeadlines(Look look) : look_(std::move(look)) {}
  ~CallDeadlines() { Stop(); }
  CallDeadlines(const CallDeadlines&) = delete;
  CallDeadlines& operator=(const CallDeadlines&) = delete;

  // The first call starts the thread.
  //   kResourceExhausted  No thread could start: the deadline is not watched.
  absl::Status Watch(Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the thread; not to be called on it. Nothing is watched any more.
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
