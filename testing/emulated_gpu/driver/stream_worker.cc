#include "sherd/testing/emulated_gpu/driver/stream_worker.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace sherd::testing {
namespace {

// Never destroyed: workers outlive main.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  int held = 0;
};
Gate& TheGate() {
  static auto* const gate = new Gate;
  return *gate;
}

std::atomic<uint64_t> seed{0};

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

void BeLate(uint64_t stream, uint64_t place) {
  const uint64_t draw = Mix(Mix(seed.load() + stream) + place) % 16;
  if (draw == 0) {
    usleep(300);
  } else if (draw < 4) {
    usleep(20);
  } else if (draw < 8) {
    sched_yield();
  }
}

void PassGate() {
  Gate& gate = TheGate();
  std::unique_lock<std::mutex> lock(gate.mutex);
  gate.changed.wait(lock, [&gate] { return gate.held <= 0; });
}

}  // namespace

void StreamWorker::Push(std::vector<Place> after, std::function<void()> run) {
  const std::lock_guard<std::mutex> lock(mutex_);
  tasks_.push_back({std::move(after), std::move(run)});
  changed_.notify_all();
  if (has_thread_) return;
  has_thread_ = true;
  std::thread([self = shared_from_this()] { self->Run(); }).detach();
}

void StreamWorker::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

bool StreamWorker::HasRun(uint64_t place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return completed_ >= place;
}

void StreamWorker::WaitFor(uint64_t place) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return completed_ >= place; });
}

void StreamWorker::SetSeed(uint64_t value) { seed.store(value); }

int StreamWorker::Hold(int change) {
  Gate& gate = TheGate();
  const std::lock_guard<std::mutex> lock(gate.mutex);
  gate.held += change;
  gate.changed.notify_all();
  return gate.held;
}

void StreamWorker::Run() {
  for (;;) {
    Task task;
    uint64_t place;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return is_closed_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      place = completed_ + 1;
    }
    PassGate();
    for (const auto& [worker, other] : task.after) worker->WaitFor(other);
    BeLate(number_, place);
    task.run();
    // Release what the task kept alive before any thread sees that it has run.
    task = Task();
    const std::lock_guard<std::mutex> lock(mutex_);
    completed_ = place;
    changed_.notify_all();
  }
}

}  // namespace sherd::testing
