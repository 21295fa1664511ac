#include "sherd/backends/nccl/run_with_deadline.h"

#include <time.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "sherd/backends/backend_abi.h"

namespace sherd::internal {

int64_t NcclClock() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void* CurrentContext(const CudaContextApi& cuda) {
  void* context = nullptr;
  if (cuda.ctx_get_current == nullptr || cuda.ctx_get_current(&context) != 0) {
    return nullptr;
  }
  return context;
}

bool RunWithDeadline(const CudaContextApi& cuda, void* context,
                     std::function<void()> body, int64_t deadline) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto state = std::make_shared<State>();
  const auto run = [cuda, context, state, body = std::move(body)] {
    if (context != nullptr) cuda.ctx_set_current(context);
    body();
    std::lock_guard<std::mutex> lock(state->mutex);
    state->done = true;
    state->changed.notify_all();
  };
  try {
    std::thread(run).detach();
  } catch (const std::system_error&) {
    run();
    return true;
  }
  std::unique_lock<std::mutex> lock(state->mutex);
  const auto is_done = [&state] { return state->done; };
  if (deadline == SHERD_NO_DEADLINE) {
    state->changed.wait(lock, is_done);
    return true;
  }
  const int64_t left = deadline - NcclClock();
  if (left <= 0) return state->done;
  // ThreadSanitizer knows the wait on this clock only.
  return state->changed.wait_until(
      lock, std::chrono::system_clock::now() + std::chrono::nanoseconds(left),
      is_done);
}

}  // namespace sherd::internal
