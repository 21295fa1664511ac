#ifndef SHERD_RPC_ENGINE_WORKER_POOL_H_
#define SHERD_RPC_ENGINE_WORKER_POOL_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/shared_work.h"

namespace sherd::internal {

struct WorkerPoolOptions {
  // Of the threads, followed by a number.
  std::string name = "sherd-rpc";
  // Tasks that run at a time, not counting those that wait. 0: as many as the
  // machine has cores, but at least four.
  int concurrency = 0;
  int max_threads = 1024;
  size_t max_queued = size_t{1} << 16;
  // If no task begins for this long while one is queued, it gets a thread
  // beyond `concurrency`: others may wait without a ScopedBlocked.
  absl::Duration stall = absl::Milliseconds(10);
  // Queued tasks get no further thread at once if, by the time that the last
  // ones took, they keep those at work for less than this: threads that are
  // woken for little cost the others more, where cores are few. If then no task
  // begins for a pause, they get one.
  absl::Duration backlog = absl::Microseconds(200);
  absl::Duration pause = absl::Microseconds(500);
  // A thread without work ends after this long; one remains.
  absl::Duration idle = absl::Seconds(10);
};

// Threads for handlers, which may wait for one another: a task that waits
// (ScopedBlocked, which Future::Wait uses) yields its place to another thread;
// tasks in a wait for kWork yield at most `concurrency` places. Threads that
// worked last work next. Tasks that take less time than it takes to wake a
// thread for them are left to the threads that are at work.
//
// Threads. Safe from any thread.
// Cost. Submit: a lock, and a wake-up if a thread may run and none wakes yet,
// which wakes the next; tasks that a function of the shared work submits have
// one wake-up together, after it. Where tasks were short, one thread is woken
// each `pause` in which some begin, to see that they go on beginning. No thread
// exists before the first task.
class WorkerPool {
 public:
  // Called once: with OK on a thread of the pool; otherwise with the reason why
  // it does not run, on any thread, which it must not block:
  //   kResourceExhausted  All possible threads wait, or too many tasks are
  //                       queued; the message has the number.
  //   kCancelled          The pool was stopped.
  using Task = std::function<void(const absl::Status& status)>;

  explicit WorkerPool(WorkerPoolOptions options);
  // Does not wait for tasks that run: see Stop.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Sets the work that receives tasks. From now on one thread without a task
  // takes part in it, and runs tasks that it submits meanwhile itself.
  void Share(std::shared_ptr<SharedWork> work);

  void Submit(Task task);

  // Whether a task waits for a thread.
  bool HasQueued() const;

  // Refuses tasks that have not begun and waits for the others. Idempotent.
  //   kDeadlineExceeded  Some still run; the message has their number. They
  //   keep
  //                      their threads, which end with them.
  absl::Status Stop(Deadline deadline);

  struct Counts {
    int threads = 0;
    // Threads whose task waits.
    int blocked = 0;
    size_t queued = 0;
  };
  Counts counts() const;

 private:
  class State;

  // Shared with the threads, which may outlive the pool.
  const std::shared_ptr<State> state_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_WORKER_POOL_H_
