#include "sherd/core/comm/channel/collective_queue.h"

#include <utility>

namespace sherd::internal {
namespace {

// The State of the queue whose thread this is.
thread_local const void* queue_of_thread = nullptr;

}  // namespace

CollectiveQueue::CollectiveQueue() : state_(std::make_shared<State>()) {}

CollectiveQueue::~CollectiveQueue() {
  std::thread thread;
  {
    absl::MutexLock lock(&state_->mutex);
    state_->closing = true;
    thread = std::move(state_->thread);
  }
  if (!thread.joinable()) return;
  if (IsOwnThread()) {
    WaitIdle();
    thread.detach();
  } else {
    thread.join();
  }
}

bool CollectiveQueue::IsOwnThread() const {
  return queue_of_thread == state_.get();
}

std::shared_ptr<WorkState> CollectiveQueue::Push(Operation operation) {
  auto state = std::make_shared<WorkState>();
  absl::MutexLock lock(&state_->mutex);
  if (!state_->thread.joinable()) {
    state_->thread = std::thread([shared = state_] { Main(shared); });
  }
  state_->unfinished.fetch_add(1, std::memory_order_relaxed);
  state_->items.push_back({std::move(operation), state});
  return state;
}

void CollectiveQueue::WaitIdle() {
  if (state_->IsIdle()) return;
  if (IsOwnThread()) {
    while (state_->RunNext()) continue;
    absl::MutexLock lock(&state_->mutex);
    state_->unfinished.fetch_sub(std::exchange(state_->running, 0),
                                 std::memory_order_release);
    return;
  }
  absl::MutexLock lock(&state_->mutex);
  state_->mutex.Await(absl::Condition(state_.get(), &State::IsIdle));
}

void CollectiveQueue::Main(const std::shared_ptr<State>& state) {
  queue_of_thread = state.get();
  for (;;) {
    {
      absl::MutexLock lock(&state->mutex);
      state->mutex.Await(absl::Condition(state.get(), &State::HasWork));
      if (state->items.empty()) return;
    }
    state->RunNext();
  }
}

bool CollectiveQueue::State::RunNext() {
  {
    Item item;
    {
      absl::MutexLock lock(&mutex);
      if (items.empty()) return false;
      item = std::move(items.front());
      items.pop_front();
    }
    ++running;
    item.state->Finish(item.operation());
  }
  absl::MutexLock lock(&mutex);
  // Unless it, or one within it, called WaitIdle.
  if (running == 0) return true;
  --running;
  unfinished.fetch_sub(1, std::memory_order_release);
  return true;
}

}  // namespace sherd::internal
