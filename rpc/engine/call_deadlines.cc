#include "sherd/rpc/engine/call_deadlines.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/named_thread.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

using Clock = Deadline::Clock;

// Looks are at least this far apart, so that many deadlines close to one
// another cost one look.
constexpr Clock::duration kGranularity = std::chrono::milliseconds(1);

}  // namespace

absl::Status CallDeadlines::Watch(Deadline deadline) {
  // The caller publishes a call and then loads this; the thread announces its
  // next look and then searches the calls: so one of the two notices the other.
  const Ticks when = deadline.when().time_since_epoch().count();
  if (when >= next_.load(std::memory_order_seq_cst)) return absl::OkStatus();
  return WatchEarlier(deadline);
}

absl::Status CallDeadlines::WatchEarlier(Deadline deadline) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return absl::OkStatus();
  if (!thread_.joinable()) {
    SHERD_ASSIGN_OR_RETURN(
        thread_, StartNamedThread("sherd-rpc-timer", [this] { Main(); }));
  }
  next_ =
      std::min(next_.load(), Ticks{deadline.when().time_since_epoch().count()});
  changed_.Signal();
  return absl::OkStatus();
}

void CallDeadlines::Main() {
  constexpr Ticks kNever = Clock::time_point::max().time_since_epoch().count();
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    const Ticks next = next_.load();
    const Clock::time_point now = Clock::now();
    const Clock::time_point due{Clock::duration(next)};
    if (next == kNever) {
      changed_.Wait(&mutex_);
      continue;
    }
    if (due > now) {
      changed_.WaitWithTimeout(&mutex_, absl::FromChrono(due - now));
      continue;
    }
    // Calls that begin during the look announce themselves.
    next_ = kNever;
    mutex_.Unlock();
    const Deadline rest = look_(now);
    mutex_.Lock();
    if (rest.IsInfinite()) continue;
    const Clock::time_point soon =
        std::max(rest.when(), Clock::now() + kGranularity);
    next_ = std::min(next_.load(), Ticks{soon.time_since_epoch().count()});
  }
}

void CallDeadlines::Stop() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

}  // namespace sherd::internal
