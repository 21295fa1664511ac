#include "sherd/core/net/event_loop.h"

#include <errno.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sherd/core/base/named_thread.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

constexpr size_t kScratchBytes = size_t{64} << 10;
constexpr int kEventsAtOnce = 256;
// Descriptors fit into the lower half of epoll's data, tokens into the upper.
constexpr uint64_t kDescriptorMask = 0xffffffff;

uint64_t DataOf(int fd, uint64_t token) {
  return token << 32 | static_cast<uint32_t>(fd);
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Start(
    const std::string& name) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wakeup(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.is_open() || !wakeup.is_open()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an event loop cannot be made: ", strerror(errno)));
  }
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = DataOf(wakeup.get(), 0);
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wakeup.get(), &event) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an event loop cannot be made: ", strerror(errno)));
  }
  auto loop = std::unique_ptr<EventLoop>(
      new EventLoop(std::move(epoll), std::move(wakeup)));
  SHERD_ASSIGN_OR_RETURN(
      loop->thread_,
      StartNamedThread(name, [raw = loop.get()] { raw->Run(); }));
  return loop;
}

EventLoop::EventLoop(UniqueFd epoll, UniqueFd wakeup)
    : epoll_(std::move(epoll)),
      wakeup_(std::move(wakeup)),
      scratch_(kScratchBytes) {}

EventLoop::~EventLoop() {
  if (!thread_.joinable()) return;
  Post([this] { stopping_ = true; });
  thread_.join();
}

void EventLoop::Post(std::function<void()> task) {
  bool first;
  {
    absl::MutexLock lock(&mutex_);
    first = tasks_.empty();
    tasks_.push_back(std::move(task));
  }
  if (!first) return;
  const uint64_t one = 1;
  // Full only if the loop has been woken already.
  (void)!write(wakeup_.get(), &one, sizeof(one));
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
  while (!stopping_) {
    const int n =
        epoll_wait(epoll_.get(), events, kEventsAtOnce, MillisToNextTimer());
    for (int i = 0; i < n; ++i) Dispatch(events[i]);
    if (!timers_.empty()) RunTimers();
    if (has_tasks_) RunTasks();
  }
  // What they hold was used on this thread only, and goes on it. It may still
  // call this loop.
  {
    const auto timers = std::exchange(timers_, {});
    const auto watched = std::exchange(watched_, {});
  }
  std::vector<std::function<void()>> tasks;
  absl::MutexLock lock(&mutex_);
  tasks.swap(tasks_);
}

void EventLoop::Dispatch(const epoll_event& event) {
  const int fd = static_cast<int>(event.data.u64 & kDescriptorMask);
  if (fd == wakeup_.get()) {
    uint64_t count;
    (void)!read(fd, &count, sizeof(count));
    has_tasks_ = true;
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
  has_tasks_ = false;
  std::vector<std::function<void()>> tasks;
  {
    absl::MutexLock lock(&mutex_);
    tasks.swap(tasks_);
  }
  for (std::function<void()>& task : tasks) task();
}

void EventLoop::RunTimers() {
  const auto now = Deadline::Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    const std::function<void()> task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
  }
}

int EventLoop::MillisToNextTimer() const {
  if (timers_.empty()) return -1;
  const auto left = timers_.begin()->first.first - Deadline::Clock::now();
  if (left.count() <= 0) return 0;
  // Up, or the loop would spin through the last millisecond.
  return static_cast<int>(std::min<int64_t>(
      1000000, absl::ToInt64Milliseconds(
                   absl::Ceil(absl::FromChrono(left), absl::Milliseconds(1)))));
}

}  // namespace sherd
