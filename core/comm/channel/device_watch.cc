#include "sherd/core/comm/channel/device_watch.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/time/clock.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/named_thread.h"

namespace sherd::internal {
namespace {

// How often it looks: after progress, and at the least while something is in
// flight.
constexpr absl::Duration kShortest = absl::Milliseconds(1);
constexpr absl::Duration kLongest = absl::Milliseconds(8);
// How long nothing has to be in flight before it sleeps: programs that call
// again and again never have to wake it.
constexpr absl::Duration kLinger = absl::Seconds(1);

}  // namespace

DeviceWatch& DeviceWatch::Global() {
  static auto* const watch = [] {
    auto* const made = new DeviceWatch;
    std::atexit([] { Global().Stop(); });
    return made;
  }();
  return *watch;
}

DeviceWatch::~DeviceWatch() { Stop(); }

void DeviceWatch::Add(std::shared_ptr<Watched> watched) {
  absl::MutexLock lock(&mutex_);
  if (thread_ != nullptr && pid_ != getpid()) {
    // The parent's, which exists only there.
    (void)thread_.release();
    run_.reset();
    watched_.clear();
    looked_at_ = nullptr;
  }
  watched_.push_back(std::move(watched));
  if (run_ == nullptr) StartThread();
}

void DeviceWatch::StartThread() {
  // A thread that ended by itself no longer takes the lock.
  if (thread_ != nullptr) thread_->join();
  thread_.reset();
  pid_ = getpid();
  asleep_ = false;
  run_ = std::make_shared<Run>();
  absl::StatusOr<std::thread> started =
      StartNamedThread(kDeviceWatchThread, [this, run = run_] { Main(*run); });
  if (started.ok()) {
    thread_ = std::make_unique<std::thread>(*std::move(started));
  } else {
    run_.reset();
    SHERD_LOG(kError) << started.status().message()
                      << "; operations on devices end only if no rank fails";
  }
}

void DeviceWatch::Remove(const Watched* watched) {
  // A child of fork has neither the thread nor a mutex in a known state.
  if (pid_ != getpid()) return;
  std::shared_ptr<Watched> removed;
  {
    absl::MutexLock lock(&mutex_);
    const bool own_thread =
        thread_ != nullptr && thread_->get_id() == std::this_thread::get_id();
    const auto is_idle = [this, watched]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return looked_at_ != watched;
    };
    if (!own_thread) mutex_.Await(absl::Condition(&is_idle));
    const auto it =
        std::find_if(watched_.begin(), watched_.end(),
                     [&](const auto& entry) { return entry.get() == watched; });
    if (it == watched_.end()) return;
    removed = std::move(*it);
    watched_.erase(it);
    // The thread itself notices that nothing is watched.
    if (own_thread || !watched_.empty()) return;
  }
  Stop();
}

void DeviceWatch::Stop() {
  if (pid_ != getpid()) return;
  std::unique_ptr<std::thread> thread;
  {
    absl::MutexLock lock(&mutex_);
    if (thread_ != nullptr && thread_->get_id() == std::this_thread::get_id()) {
      return;
    }
    if (run_ != nullptr) run_->stop = true;
    run_.reset();
    thread = std::move(thread_);
  }
  if (thread != nullptr) thread->join();
}

void DeviceWatch::WakeThread() {
  absl::MutexLock lock(&mutex_);
  asleep_ = false;
}

DeviceWatch::Watched::Sight DeviceWatch::LookAtAll() {
  std::vector<std::shared_ptr<Watched>> all;
  {
    absl::MutexLock lock(&mutex_);
    all = watched_;
  }
  Watched::Sight seen = Watched::Sight::kNothing;
  for (const std::shared_ptr<Watched>& watched : all) {
    {
      absl::MutexLock lock(&mutex_);
      if (std::find(watched_.begin(), watched_.end(), watched) ==
          watched_.end()) {
        continue;
      }
      looked_at_ = watched.get();
    }
    seen = std::max(seen, watched->Look());
    absl::MutexLock lock(&mutex_);
    looked_at_ = nullptr;
  }
  return seen;
}

void DeviceWatch::Main(Run& run) {
  absl::Duration interval = kShortest;
  absl::Time busy = absl::Now();
  for (;;) {
    const Watched::Sight seen = LookAtAll();
    if (seen != Watched::Sight::kNothing) busy = absl::Now();
    interval = seen == Watched::Sight::kProgress
                   ? kShortest
                   : std::min(2 * interval, kLongest);
    bool sleeps = false;
    if (seen == Watched::Sight::kNothing && absl::Now() - busy >= kLinger) {
      // A thread that queues an operation from here on sees that it has to wake
      // this thread; operations queued before are seen now.
      asleep_ = true;
      sleeps = LookAtAll() == Watched::Sight::kNothing;
      if (!sleeps) asleep_ = false;
    }
    absl::MutexLock lock(&mutex_);
    if (sleeps) {
      const auto is_wanted = [this, &run] {
        return run.stop || !asleep_.load(std::memory_order_seq_cst);
      };
      mutex_.Await(absl::Condition(&is_wanted));
      busy = absl::Now();
      interval = kShortest;
    } else {
      mutex_.AwaitWithTimeout(absl::Condition(&run.stop), interval);
    }
    if (run.stop) return;
    if (watched_.empty()) {
      run_.reset();
      return;
    }
  }
}

}  // namespace sherd::internal
