#include "sherd/core/comm/flight/watchdog.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/named_thread.h"

namespace sherd::internal {
namespace {

// The handler's state: all that it may touch.
std::atomic<bool> dump_wanted{false};
std::atomic<pid_t> handler_pid{0};
struct sigaction previous_action;

void OnSignal(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  // A child of fork has the handler, but not the thread.
  if (handler_pid.load(std::memory_order_relaxed) == getpid()) {
    dump_wanted.store(true, std::memory_order_relaxed);
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL &&
             previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  }
  errno = saved_errno;
}

void InstallHandlerOnce() {
  static const bool installed = [] {
    if (sigaction(SIGUSR1, nullptr, &previous_action) != 0) return false;
    if ((previous_action.sa_flags & SA_SIGINFO) == 0 &&
        previous_action.sa_handler == SIG_IGN) {
      return false;
    }
    struct sigaction action = {};
    action.sa_sigaction = OnSignal;
    action.sa_mask = previous_action.sa_mask;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    return sigaction(SIGUSR1, &action, nullptr) == 0;
  }();
  (void)installed;
}

std::string Seconds(int64_t nanoseconds) {
  return absl::StrCat(nanoseconds / 1'000'000'000, ".",
                      nanoseconds / 100'000'000 % 10, " s");
}

absl::Status OverdueStatus(const FlightGroupInfo& group,
                           const FlightEntry& entry, int64_t now) {
  ErrorInfo info;
  info.group = group.name;
  info.operation = std::string(Name(entry.op));
  info.sequence = entry.sequence;
  const int64_t deadline = entry.deadline.value_or(now);
  return WithErrorInfo(
      absl::DeadlineExceededError(
          absl::StrCat("group \"", group.name, "\", rank ", group.rank, ", ",
                       Name(entry.op), " #", entry.sequence,
                       ": it did not end within ", Seconds(now - deadline),
                       " after its deadline; the watchdog aborts the group")),
      info);
}

}  // namespace

Watchdog& Watchdog::Global() {
  static auto* const watchdog = new Watchdog(
      FlightRecorder::Global(), WatchdogOptions{.handle_signal = true});
  return *watchdog;
}

Watchdog::Watchdog(FlightRecorder& recorder, WatchdogOptions options)
    : recorder_(recorder), options_(std::move(options)) {}

Watchdog::~Watchdog() {
  std::unique_ptr<std::thread> thread;
  {
    absl::MutexLock lock(&mutex_);
    SHERD_CHECK(watched_.empty()) << "a group is still watched";
    // Left behind if the last watch ended on the thread itself.
    if (run_ != nullptr) run_->stop = true;
    thread = std::move(thread_);
  }
  if (thread != nullptr) thread->join();
}

Watchdog::Watch& Watchdog::Watch::operator=(Watch&& other) noexcept {
  if (this == &other) return *this;
  Stop();
  watchdog_ = std::exchange(other.watchdog_, nullptr);
  key_ = other.key_;
  return *this;
}

void Watchdog::Watch::Stop() {
  if (watchdog_ != nullptr) std::exchange(watchdog_, nullptr)->Remove(key_);
}

Watchdog::Watch Watchdog::Add(const GroupTag& group,
                              std::function<void(absl::Status)> abort) {
  absl::MutexLock lock(&mutex_);
  if (thread_ != nullptr && pid_ != getpid()) {
    // The parent's, which exists only there.
    (void)thread_.release();
    run_.reset();
    watched_.clear();
  }
  watched_[++last_key_] = {.group = &group, .abort = std::move(abort)};
  if (run_ == nullptr) StartThread();
  return Watch(this, last_key_);
}

void Watchdog::StartThread() {
  // A thread that ended by itself no longer takes the lock.
  if (thread_ != nullptr) thread_->join();
  thread_.reset();
  pid_ = getpid();
  if (options_.handle_signal) {
    handler_pid.store(getpid(), std::memory_order_relaxed);
    // From a time without groups.
    dump_wanted.store(false, std::memory_order_relaxed);
    InstallHandlerOnce();
  }
  run_ = std::make_shared<Run>();
  absl::StatusOr<std::thread> started =
      StartNamedThread(kWatchdogThread, [this, run = run_] { Main(*run); });
  if (started.ok()) {
    thread_ = std::make_unique<std::thread>(*std::move(started));
  } else {
    run_.reset();
    SHERD_LOG(kError) << started.status().message()
                      << "; operations end only where the backend keeps their "
                         "deadline";
  }
}

void Watchdog::Remove(uint64_t key) {
  // A child of fork has neither the thread nor a mutex in a known state.
  if (pid_ != getpid()) return;
  std::unique_ptr<std::thread> thread;
  {
    absl::MutexLock lock(&mutex_);
    const bool own_thread =
        thread_ != nullptr && thread_->get_id() == std::this_thread::get_id();
    const auto is_idle = [this, key]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      const auto it = watched_.find(key);
      return it == watched_.end() || !it->second.in_abort;
    };
    if (!own_thread) mutex_.Await(absl::Condition(&is_idle));
    watched_.erase(key);
    // The thread itself notices that nothing is watched.
    if (own_thread) return;
    if (!watched_.empty() || run_ == nullptr) return;
    run_->stop = true;
    run_.reset();
    thread = std::move(thread_);
  }
  if (thread != nullptr) thread->join();
}

void Watchdog::Main(Run& run) {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&run.stop), options_.period);
      if (run.stop) return;
      if (watched_.empty()) {
        run_.reset();
        return;
      }
    }
    if (options_.handle_signal &&
        dump_wanted.exchange(false, std::memory_order_relaxed)) {
      DumpFlightOfAllRanks(recorder_, FlightReason::kSignal, "SIGUSR1");
    }
    for (const Overdue& overdue : FindOverdue()) Act(overdue);
  }
}

std::vector<Watchdog::Overdue> Watchdog::FindOverdue() {
  const int64_t now = FlightClock::MonotonicNow();
  // By group, the first that was begun.
  std::map<uint32_t, FlightEntry> overdue;
  recorder_.VisitOutstanding([&](const FlightEntry& entry) {
    if (!entry.deadline || *entry.deadline > now) return;
    const auto [it, is_new] = overdue.emplace(entry.group, entry);
    if (!is_new && entry.id < it->second.id) it->second = entry;
  });
  std::vector<Overdue> found;
  absl::MutexLock lock(&mutex_);
  for (auto& [key, watched] : watched_) {
    const auto it = overdue.find(watched.group->id());
    if (it == overdue.end() || watched.aborted) {
      watched.overdue = 0;
      continue;
    }
    if (watched.overdue != it->second.id) watched.looks = 0;
    watched.overdue = it->second.id;
    if (++watched.looks * options_.period <= options_.grace) continue;
    watched.aborted = true;
    watched.in_abort = true;
    found.push_back({key, it->second});
  }
  return found;
}

void Watchdog::Act(const Overdue& overdue) {
  // The destructor of the watch waits for in_abort, except on this thread.
  const auto find = [&] {
    absl::MutexLock lock(&mutex_);
    const auto it = watched_.find(overdue.key);
    return it == watched_.end() ? Watched() : it->second;
  };
  const GroupTag* const group = find().group;
  if (group == nullptr) return;
  const absl::Status status =
      OverdueStatus(group->info(), overdue.entry, FlightClock::MonotonicNow());
  const FlightDump dump =
      TakeFlightDump(recorder_, FlightReason::kTimeout, status.message(),
                     group->info().world_rank());
  SHERD_LOG(kError) << status.message();
  // A log sink may have ended the watch. Before the dump is written, since a
  // file system may hang, too.
  if (const auto abort = find().abort; abort != nullptr) abort(status);
  {
    absl::MutexLock lock(&mutex_);
    const auto it = watched_.find(overdue.key);
    if (it != watched_.end()) it->second.in_abort = false;
  }
  options_.write(dump);
}

}  // namespace sherd::internal
