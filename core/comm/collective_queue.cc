#include "sherd/core/comm/collective_queue.h"

#include <utility>

namespace sherd::internal {

CollectiveQueue::~CollectiveQueue() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

std::shared_ptr<WorkState> CollectiveQueue::Push(Operation operation) {
  auto state = std::make_shared<WorkState>();
  absl::MutexLock lock(&mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { RunItems(); });
  unfinished_.fetch_add(1, std::memory_order_relaxed);
  items_.push_back({std::move(operation), state});
  return state;
}

void CollectiveQueue::WaitIdle() {
  if (IsIdle()) return;
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &CollectiveQueue::IsIdle));
}

void CollectiveQueue::RunItems() {
  for (;;) {
    Item item;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &CollectiveQueue::HasWork));
      if (items_.empty()) return;
      item = std::move(items_.front());
      items_.pop_front();
    }
    item.state->Finish(item.operation());
    absl::MutexLock lock(&mutex_);
    unfinished_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace sherd::internal
