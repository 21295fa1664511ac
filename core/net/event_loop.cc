#include "sherd/core/net/event_loop.h"

#include <errno.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sherd/core/base/named_thread.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

using Time = Deadline::Clock::time_point;
constexpr Time kNever = Time::max();

constexpr size_t kScratchBytes = size_t{64} << 10;
// Other threads that handle events, or want to leave, get their turn then.
constexpr int kEventsAtOnce = 16;
// A thread without a task, and one that waits: with more, the system would too
// often wake the wrong one.
constexpr size_t kVisitors = 2;
// When tasks of PostSoon are due.
constexpr itimerspec kSoon = {.it_interval = {}, .it_value = {0, 100'000}};
// Descriptors fit into the lower half of epoll's data, tokens into the upper.
constexpr uint64_t kDescriptorMask = 0xffffffff;

// The loop whose functions the calling thread runs, or null.
EventLoop*& LoopHere() {
  static thread_local EventLoop* loop = nullptr;
  return loop;
}

// For epoll_wait; rounded up, or the loop would spin in the last millisecond.
int MillisUntil(Time time) {
  if (time == kNever) return -1;
  const auto left = time - Deadline::Clock::now();
  if (left.count() <= 0) return 0;
  return static_cast<int>(std::min<int64_t>(
      1000000, absl::ToInt64Milliseconds(
                   absl::Ceil(absl::FromChrono(left), absl::Milliseconds(1)))));
}

uint64_t DataOf(int fd, uint64_t token) {
  return token << 32 | static_cast<uint32_t>(fd);
}

// Wakes one thread each time `fd` becomes readable, though nothing reads it.
bool WakesFor(int epoll, int fd) {
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = DataOf(fd, 0);
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Start(
    const std::string& name) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wakeup(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  UniqueFd alarm(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll.is_open() || !wakeup.is_open() || !alarm.is_open() ||
      !WakesFor(epoll.get(), wakeup.get()) ||
      !WakesFor(epoll.get(), alarm.get())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an event loop cannot be made: ", strerror(errno)));
  }
  auto loop = std::unique_ptr<EventLoop>(
      new EventLoop(std::move(epoll), std::move(wakeup), std::move(alarm)));
  SHERD_ASSIGN_OR_RETURN(
      loop->thread_,
      StartNamedThread(name, [raw = loop.get()] { raw->Run(); }));
  return loop;
}

// The loop as seen by other threads. It may end during a call.
class EventLoop::Work final : public internal::SharedWork {
 public:
  explicit Work(EventLoop* loop) : loop_(loop) {}

  bool WorkUntil(Wait& wait, Deadline deadline) override {
    // It would wait for itself.
    if (LoopHere() != nullptr) return false;
    EventLoop* loop;
    {
      absl::MutexLock lock(&mutex_);
      if (is_ending_) return false;
      if (visits_.size() == kVisitors) {
        if (loop_->has_soon_tasks_) loop_->Wake();
        return false;
      }
      visits_.push_back(&wait);
      loop = loop_;
    }
    const bool stayed = loop->Visit(wait, deadline);
    absl::MutexLock lock(&mutex_);
    visits_.erase(std::find(visits_.begin(), visits_.end(), &wait));
    return stayed;
  }

  void Wake() override {
    absl::MutexLock lock(&mutex_);
    if (!visits_.empty()) loop_->Wake();
  }

  bool RunsHere() const override {
    if (LoopHere() == nullptr) return false;
    absl::MutexLock lock(&mutex_);
    return LoopHere() == loop_;
  }
  void Defer(std::function<void()> task) override {
    LoopHere()->PostSoon(std::move(task));
  }

  bool is_ending() const { return is_ending_; }

  // Whether a thread sleeps that was to wake: the system woke another one.
  bool OneOversleeps() {
    absl::MutexLock lock(&mutex_);
    return std::any_of(visits_.begin(), visits_.end(), [this](Wait* wait) {
      return wait->sleeps() && (wait->has_ended() || is_ending_);
    });
  }

  // No thread works any more, nor will.
  void End() {
    is_ending_ = true;
    Wake();
    absl::MutexLock lock(&mutex_);
    const auto all_left = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return visits_.empty();
    };
    mutex_.Await(absl::Condition(&all_left));
    loop_ = nullptr;
  }

 private:
  mutable absl::Mutex mutex_;
  EventLoop* loop_ ABSL_GUARDED_BY(mutex_);
  std::vector<Wait*> visits_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> is_ending_{false};
};

EventLoop::EventLoop(UniqueFd epoll, UniqueFd wakeup, UniqueFd alarm)
    : epoll_(std::move(epoll)),
      wakeup_(std::move(wakeup)),
      alarm_(std::move(alarm)),
      work_(std::make_shared<Work>(this)),
      scratch_(kScratchBytes) {}

EventLoop::~EventLoop() {
  if (!thread_.joinable()) return;
  work_->End();
  Post([this] { stopping_ = true; });
  thread_.join();
}

std::shared_ptr<internal::SharedWork> EventLoop::work() const { return work_; }

void EventLoop::Wake() {
  const uint64_t one = 1;
  // Never read, and never full.
  (void)!write(wakeup_.get(), &one, sizeof(one));
}

void EventLoop::Post(std::function<void()> task) {
  bool first;
  {
    absl::MutexLock lock(&mutex_);
    first = tasks_.empty();
    tasks_.push_back(std::move(task));
  }
  if (first) Wake();
}

void EventLoop::PostSoon(std::function<void()> task) {
  if (LoopHere() == this) return deferred_.push_back(std::move(task));
  absl::MutexLock lock(&mutex_);
  soon_tasks_.push_back(std::move(task));
  has_soon_tasks_ = true;
  // Where it was set for earlier tasks that ran before they were due, this one
  // runs a little earlier too: setting it less often costs less.
  if (std::exchange(is_alarm_set_, true)) return;
  timerfd_settime(alarm_.get(), 0, &kSoon, nullptr);
}

absl::StatusOr<uint64_t> EventLoop::Watch(int fd, uint32_t events,
                                          Handler handler) {
  const uint64_t token = next_number_++ & kDescriptorMask;
  epoll_event event = {};
  event.events = events;
  event.data.u64 = DataOf(fd, token);
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a descriptor cannot be watched: ", strerror(errno)));
  }
  watched_[fd] = {token, std::make_shared<Handler>(std::move(handler))};
  return token;
}

void EventLoop::Modify(int fd, uint64_t token, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = DataOf(fd, token);
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void EventLoop::Unwatch(int fd) {
  if (watched_.erase(fd) == 0) return;
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::RunAt(Deadline::Clock::time_point when,
                                    std::function<void()> task) {
  const TimerId timer = {when, next_number_++};
  timers_.emplace(timer, std::move(task));
  return timer;
}

void EventLoop::Cancel(const TimerId& timer) { timers_.erase(timer); }

void EventLoop::Run() {
  epoll_event events[kEventsAtOnce];
  for (;;) {
    Time look;
    {
      absl::MutexLock lock(&running_);
      // They may set timers.
      if (has_soon_tasks_) HandleInTurn(nullptr, 0);
      if (stopping_) break;
      look = next_look_ = NextTimer();
    }
    const int n =
        epoll_wait(epoll_.get(), events, kEventsAtOnce, MillisUntil(look));
    Handle(events, n);
  }
  // Their captures were used by functions of this loop only, and are destroyed
  // as if in one. They may still call this loop.
  {
    const auto timers = std::exchange(timers_, {});
    const auto watched = std::exchange(watched_, {});
  }
  std::vector<std::function<void()>> tasks;
  std::vector<std::function<void()>> soon_tasks;
  absl::MutexLock lock(&mutex_);
  tasks.swap(tasks_);
  soon_tasks.swap(soon_tasks_);
}

bool EventLoop::Visit(internal::SharedWork::Wait& wait,
                      Deadline deadline) noexcept {
  epoll_event events[kEventsAtOnce];
  Time timer = kNever;
  // Another thread that runs the loop now runs them too.
  if (has_soon_tasks_ && running_.TryLock()) {
    timer = HandleInTurn(nullptr, 0);
    running_.Unlock();
  }
  while (!wait.has_ended() && !deadline.HasPassed() && wait.BeginSleep()) {
    const bool is_ending = work_->is_ending();
    const int n =
        is_ending ? 0
                  : epoll_wait(epoll_.get(), events, kEventsAtOnce,
                               MillisUntil(std::min(deadline.when(), timer)));
    wait.EndSleep();
    if (is_ending) break;
    // Without events it need not wait until others let it.
    if (n > 0 || (timer != kNever && timer <= Deadline::Clock::now())) {
      timer = Handle(events, n);
    }
  }
  // No other thread checks by then.
  if (timer != kNever) Wake();
  return !work_->is_ending();
}

Time EventLoop::Handle(const epoll_event* events, int n) {
  Time timer;
  bool was_woken;
  {
    absl::MutexLock lock(&running_);
    timer = HandleInTurn(events, n);
    was_woken = std::exchange(was_woken_, false);
  }
  // The wake-up may have been for another thread, which needs a core. If that
  // one returns, so will this one.
  if (was_woken && work_->OneOversleeps()) {
    Wake();
    sched_yield();
  }
  return timer;
}

Time EventLoop::HandleInTurn(const epoll_event* events, int n) {
  const internal::ScopedLibraryThread scope;
  LoopHere() = this;
  for (int i = 0; i < n; ++i) {
    Call([&] { Dispatch(events[i]); });
  }
  if (!timers_.empty()) RunTimers();
  if (was_woken_) RunTasks();
  if (has_soon_tasks_) RunSoonTasks();
  LoopHere() = nullptr;
  return NextTimer() < next_look_ ? NextTimer() : kNever;
}

template <typename Function>
void EventLoop::Call(const Function& function) {
  function();
  while (!deferred_.empty()) {
    for (const auto& task : std::exchange(deferred_, {})) task();
  }
}

void EventLoop::Dispatch(const epoll_event& event) {
  const int fd = static_cast<int>(event.data.u64 & kDescriptorMask);
  if (fd == wakeup_.get()) {
    was_woken_ = true;
    return;
  }
  if (fd == alarm_.get()) {
    absl::MutexLock lock(&mutex_);
    is_alarm_set_ = false;
    return;
  }
  const auto it = watched_.find(fd);
  // An earlier handler of this round may have closed it, and a new descriptor
  // may have its number already.
  if (it == watched_.end() || DataOf(fd, it->second.token) != event.data.u64) {
    return;
  }
  const std::shared_ptr<Handler> handler = it->second.handler;
  (*handler)(event.events);
}

void EventLoop::RunTasks() {
  std::vector<std::function<void()>> tasks;
  {
    absl::MutexLock lock(&mutex_);
    tasks.swap(tasks_);
  }
  for (const std::function<void()>& task : tasks) Call(task);
}

// Those that other threads post meanwhile have set the alarm.
void EventLoop::RunSoonTasks() {
  std::vector<std::function<void()>> tasks;
  {
    absl::MutexLock lock(&mutex_);
    tasks.swap(soon_tasks_);
    has_soon_tasks_ = false;
  }
  for (const std::function<void()>& task : tasks) Call(task);
}

void EventLoop::RunTimers() {
  const auto now = Deadline::Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    const std::function<void()> task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    Call(task);
  }
}

Time EventLoop::NextTimer() const {
  return timers_.empty() ? kNever : timers_.begin()->first.first;
}

}  // namespace sherd
