#ifndef SHERD_CORE_COMM_CHANNEL_COLLECTIVE_QUEUE_H_
#define SHERD_CORE_COMM_CHANNEL_COLLECTIVE_QUEUE_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/comm/channel/work_state.h"

namespace sherd::internal {

// Runs operations one after another on one thread, which the first operation
// starts: groups that are only called synchronously have none.
//
// Last handles. An operation, and whatever continues it, may let go of the last
// handle of the queue's owner, and so destroy the queue on its own thread.
// Operations queued behind it then run within the destructor, and the thread,
// which shares only State with the queue, ends by itself.
//
// Threads. Safe from any thread; the destructor first runs all queued
// operations.
class CollectiveQueue {
 public:
  using Operation = std::function<absl::Status()>;

  CollectiveQueue();
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;
  ~CollectiveQueue();

  std::shared_ptr<WorkState> Push(Operation operation);

  // Returns once all operations pushed before have ended; takes no lock if they
  // already have. Called from within an operation of this queue it runs the
  // operations behind that one; the operations within which it is called count
  // as ended from then on.
  void WaitIdle();

 private:
  struct Item {
    Operation operation;
    std::shared_ptr<WorkState> state;
  };
  // Shared with the thread, and as long as it runs.
  struct State {
    // Runs the first queued operation; false if the queue is empty.
    bool RunNext() ABSL_LOCKS_EXCLUDED(mutex);
    bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      return !items.empty() || closing;
    }
    bool IsIdle() const {
      return unfinished.load(std::memory_order_acquire) == 0;
    }

    absl::Mutex mutex;
    std::deque<Item> items ABSL_GUARDED_BY(mutex);
    // Changed with the lock held, so that WaitIdle misses no end.
    std::atomic<int> unfinished{0};
    bool closing ABSL_GUARDED_BY(mutex) = false;
    std::thread thread ABSL_GUARDED_BY(mutex);
    // Used by the thread only: items that run, each within the one before, and
    // are counted as unfinished.
    int running = 0;
  };

  static void Main(const std::shared_ptr<State>& state);
  // Whether the calling thread is this queue's.
  bool IsOwnThread() const;

  const std::shared_ptr<State> state_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_COLLECTIVE_QUEUE_H_
