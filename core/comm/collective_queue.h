#ifndef SHERD_CORE_COMM_COLLECTIVE_QUEUE_H_
#define SHERD_CORE_COMM_COLLECTIVE_QUEUE_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/comm/work_state.h"

namespace sherd::internal {

// Runs operations one after another on one thread, which the first operation
// starts: groups that are only called synchronously have none.
//
// Threads. Safe from any thread; the destructor runs what is queued first.
class CollectiveQueue {
 public:
  using Operation = std::function<absl::Status()>;

  CollectiveQueue() = default;
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;
  ~CollectiveQueue();

  std::shared_ptr<WorkState> Push(Operation operation);

  // Returns once everything that was pushed before has ended; without a lock if
  // that is the case already.
  void WaitIdle();

 private:
  struct Item {
    Operation operation;
    std::shared_ptr<WorkState> state;
  };

  void RunItems();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !items_.empty() || closing_;
  }
  bool IsIdle() const {
    return unfinished_.load(std::memory_order_acquire) == 0;
  }

  absl::Mutex mutex_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  // Changed with the lock held, so that WaitIdle misses no end.
  std::atomic<int> unfinished_{0};
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_COLLECTIVE_QUEUE_H_
