#ifndef SHERD_CORE_NET_EVENT_LOOP_H_
#define SHERD_CORE_NET_EVENT_LOOP_H_

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/shared_work.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {

// Waits for descriptors (epoll), timers and tasks, and runs the function that
// was registered for each, one after another. Functions must not block.
//
// The loop has its own thread; threads that take part in work() also run it:
// they wait for the same events, and the system wakes the one that came last.
// So a thread that waits for a reply, or for work, receives it itself, and the
// loop's own thread sleeps until that one is busy otherwise.
//
// Threads. "Loop thread" methods may be called only by functions that the loop
// runs, on any of these threads, and "on the loop thread" is in such a
// function; the others by any thread.
class EventLoop {
 public:
  using TimerId = std::pair<Deadline::Clock::time_point, uint64_t>;
  // What epoll reported: EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP.
  using Handler = std::function<void(uint32_t events)>;

  // Starts the thread. Tools show it as `name`, at most 15 characters.
  //   kResourceExhausted  No descriptors or threads left.
  static absl::StatusOr<std::unique_ptr<EventLoop>> Start(
      const std::string& name);

  // Runs the tasks that were posted before, drops handlers, timers and later
  // tasks (with their captures, on the loop thread), and ends the thread. Not
  // in a function that the loop runs.
  ~EventLoop();

  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Runs `task` on the loop thread, in the order of posting.
  void Post(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);

  // For work that costs less if it is done for several at once: runs `task` on
  // the loop thread after about 0.1 ms, or earlier: when the loop has handled
  // events, or a thread begins to take part in work(). A function of the loop
  // is followed by what it posts. The loop's end drops what other threads have
  // posted.
  // Cost. A lock, and one call of the system each 0.1 ms.
  void PostSoon(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);

  // Outlives the loop; afterwards no thread can take part. Two threads at a
  // time may take part, but none that runs a function of a loop; they must hold
  // no lock that a function of the loop may need.
  std::shared_ptr<internal::SharedWork> work() const;

  // Loop thread. Calls `handler` whenever `events` are pending, until Unwatch;
  // with EPOLLET once for each change, and once for those pending at Watch and
  // Modify, which costs fewer wake-ups. Calls may be spurious. The caller owns
  // the descriptor and keeps it open until Unwatch. Returns a token for Modify.
  absl::StatusOr<uint64_t> Watch(int fd, uint32_t events, Handler handler);

  // Any thread, as long as `fd` is watched.
  void Modify(int fd, uint64_t token, uint32_t events);

  // Loop thread. The handler is not called again, and is destroyed once it is
  // not running.
  void Unwatch(int fd);

  // Loop thread. Runs `task` once, at `when` or up to about a millisecond
  // later.
  TimerId RunAt(Deadline::Clock::time_point when, std::function<void()> task);

  // Loop thread. A timer that has run already is not an error.
  void Cancel(const TimerId& timer);

  // Loop thread. A buffer for bytes that a handler receives and passes on.
  std::vector<char>& scratch() { return scratch_; }

 private:
  class Work;
  struct Watched {
    uint64_t token;
    std::shared_ptr<Handler> handler;
  };

  EventLoop(UniqueFd epoll, UniqueFd wakeup, UniqueFd alarm);

  void Run();
  // An exception of a function ends the process here too.
  bool Visit(internal::SharedWork::Wait& wait, Deadline deadline) noexcept;
  void Wake();
  // Returns when the next timer is due, if the loop's own thread will not check
  // by then.
  Deadline::Clock::time_point Handle(const epoll_event* events, int n)
      ABSL_LOCKS_EXCLUDED(running_);
  Deadline::Clock::time_point HandleInTurn(const epoll_event* events, int n)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(running_);
  // Each function is followed by what it has deferred.
  template <typename Function>
  void Call(const Function& function);
  void RunTasks();
  void RunSoonTasks();
  void RunTimers();
  Deadline::Clock::time_point NextTimer() const;
  void Dispatch(const epoll_event& event);

  const UniqueFd epoll_;
  const UniqueFd wakeup_;
  // Rings when tasks of PostSoon are due.
  const UniqueFd alarm_;
  absl::Mutex mutex_;
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> soon_tasks_ ABSL_GUARDED_BY(mutex_);
  bool is_alarm_set_ ABSL_GUARDED_BY(mutex_) = false;
  // Whether soon_tasks_ has any.
  std::atomic<bool> has_soon_tasks_{false};
  const std::shared_ptr<Work> work_;

  // Held by the thread that runs the loop.
  absl::Mutex running_;
  // What functions of the loop have posted soon.
  std::vector<std::function<void()>> deferred_;
  bool stopping_ = false;
  bool was_woken_ = false;
  // When the loop's own thread checks the timers next.
  Deadline::Clock::time_point next_look_ = Deadline::Clock::time_point::max();
  std::unordered_map<int, Watched> watched_;
  std::map<TimerId, std::function<void()>> timers_;
  uint64_t next_number_ = 1;
  std::vector<char> scratch_;

  std::thread thread_;
};

}  // namespace sherd

#endif  // SHERD_CORE_NET_EVENT_LOOP_H_
