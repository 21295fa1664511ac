#include "sherd/rpc/engine/worker_pool.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <iterator>
#include <list>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/named_thread.h"
#include "sherd/core/base/scoped_blocked.h"
#include "sherd/core/base/shared_work.h"

namespace sherd::internal {
namespace {

// Of a task, until some have been measured.
constexpr std::chrono::nanoseconds kUnknownTaskTime =
    std::chrono::milliseconds(1);

}  // namespace

// Invariant. While a task is queued, a thread is being woken for it, or one
// watches whether tasks keep beginning, or there are max_threads, or the thread
// that submitted it will look in a moment.
class WorkerPool::State : public std::enable_shared_from_this<State> {
 public:
  explicit State(WorkerPoolOptions options) : options_(std::move(options)) {
    if (options_.concurrency <= 0) {
      options_.concurrency =
          std::max(4, static_cast<int>(std::thread::hardware_concurrency()));
    }
  }

  void Share(std::shared_ptr<SharedWork> work) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    work_ = std::move(work);
  }
  void Submit(Task task) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Stop(Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  Counts counts() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasQueued() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return !queue_.empty();
  }

 private:
  struct Thread final : BlockingObserver {
    explicit Thread(State* pool) : state(pool) {}
    void BeginBlocked(WaitFor what) override {
      state->BeginBlocked(what, &place);
    }
    void EndBlocked() override { state->EndBlocked(place); }
    // Returns what to signal without the lock, which the thread needs at once.
    std::shared_ptr<absl::CondVar> Wake() {
      woken = true;
      if (visit == nullptr) return wake;
      visit->End();
      return nullptr;
    }

    State* const state;
    // While its task waits: the counter that includes it.
    int* place = nullptr;
    std::thread thread;
    // May be signalled after the thread has ended.
    const std::shared_ptr<absl::CondVar> wake =
        std::make_shared<absl::CondVar>();
    // While it takes part in the work that receives tasks.
    SharedWork::Wait* visit = nullptr;
    // Removed from idle_ to look for a task.
    bool woken = true;
  };
  // What is left to do without the lock.
  struct Outcome {
    std::vector<Task> refused = {};
    std::shared_ptr<absl::CondVar> woken = nullptr;
  };

  // The calling thread, while it takes part in the work that receives tasks.
  static Thread*& Visitor() {
    static thread_local Thread* thread = nullptr;
    return thread;
  }
  void Main(Thread* self) ABSL_LOCKS_EXCLUDED(mutex_);
  // Why a thread that slept goes on: it was woken, or saw that all tasks have
  // begun; none of the queued ones began for options_.pause, or .stall; it was
  // idle for the limit.
  enum class Found { kTasks, kPause, kStall, kNothing };
  Found Sleep(Thread* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // While tasks are queued that this thread does not take. Until it is woken,
  // or they go on beginning no more, or no task has begun since a pause ago.
  Found Watch(Thread* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayRun() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return active_ < options_.concurrency;
  }
  // Whether the threads at work would need long for what is queued.
  bool IsWorthAThread() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return active_ == 0 || absl::FromChrono(queue_.size() * task_time_) >
                               active_ * options_.backlog;
  }
  // Runs the first task without the lock.
  void RunTask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits like Sleep, but takes part in the work if there is any.
  void Visit(Thread* self, Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether Serve follows once the work has submitted more.
  bool ServesLater() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Restores the invariant. Refuses tasks that can never run.
  Outcome Serve() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Task> TakeQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WakeOrStart(Outcome& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void JoinEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginBlocked(WaitFor what, int** place) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndBlocked(int* place) ABSL_LOCKS_EXCLUDED(mutex_);
  static void Complete(Outcome outcome, const absl::Status& why);
  absl::Status AllWait() const {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the pool of handlers has no thread left: all ", options_.max_threads,
        " that it may have wait; nest calls less deeply"));
  }

  WorkerPoolOptions options_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<SharedWork> work_ ABSL_GUARDED_BY(mutex_);
  // One thread at a time takes part in work_.
  bool visited_ ABSL_GUARDED_BY(mutex_) = false;
  bool serves_later_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  std::list<Thread> threads_ ABSL_GUARDED_BY(mutex_);
  std::list<Thread> ended_ ABSL_GUARDED_BY(mutex_);
  // The thread that worked last is at the back.
  std::vector<Thread*> idle_ ABSL_GUARDED_BY(mutex_);
  // Threads that run a task and do not wait; that wait for calls; that wait for
  // work, of which at most `concurrency` yield their places; that were
  // woken or started and have not looked yet; that watch the queue.
  int active_ ABSL_GUARDED_BY(mutex_) = 0;
  int blocked_ ABSL_GUARDED_BY(mutex_) = 0;
  int working_ ABSL_GUARDED_BY(mutex_) = 0;
  int waking_ ABSL_GUARDED_BY(mutex_) = 0;
  int watching_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  // What a task takes: a mean in which the last ones count most.
  std::chrono::nanoseconds task_time_ ABSL_GUARDED_BY(mutex_) =
      kUnknownTaskTime;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

void WorkerPool::State::Complete(Outcome outcome, const absl::Status& why) {
  if (outcome.woken != nullptr) outcome.woken->Signal();
  for (Task& task : outcome.refused) task(why);
}

void WorkerPool::State::Submit(Task task) {
  Outcome outcome;
  absl::Status why;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) {
      why = absl::CancelledError("the pool of handlers was stopped");
    } else if (queue_.size() >= options_.max_queued) {
      why = absl::ResourceExhaustedError(
          absl::StrCat("the pool of handlers has ", queue_.size(),
                       " calls waiting for a thread, its maximum"));
    }
    if (!why.ok()) {
      outcome.refused.push_back(std::move(task));
    } else {
      queue_.push_back(std::move(task));
      if (!ServesLater()) outcome = Serve();
      why = AllWait();
    }
  }
  Complete(std::move(outcome), why);
}

// A thread that is woken for the first of several tasks which the work submits
// one after another would sleep between them.
bool WorkerPool::State::ServesLater() {
  if (work_ == nullptr || !work_->RunsHere()) return false;
  if (std::exchange(serves_later_, true)) return true;
  work_->Defer([state = shared_from_this()] {
    Outcome outcome;
    {
      absl::MutexLock lock(&state->mutex_);
      state->serves_later_ = false;
      outcome = state->Serve();
    }
    Complete(std::move(outcome), state->AllWait());
  });
  return true;
}

WorkerPool::State::Outcome WorkerPool::State::Serve() {
  if (queue_.empty()) return {};
  // A woken thread wakes the next; but this one may have more to do first.
  // The calling thread may be one of another pool.
  const Thread* const visitor = Visitor();
  const bool this_one =
      visitor != nullptr && visitor->state == this && visitor->woken;
  if (waking_ > (this_one ? 1 : 0)) return {};
  if (watching_ > 0 && !(MayRun() && IsWorthAThread())) return {};
  Outcome outcome;
  if (!WakeOrStart(outcome) && active_ + working_ + waking_ + watching_ == 0) {
    outcome.refused = TakeQueue();
  }
  return outcome;
}

std::vector<WorkerPool::Task> WorkerPool::State::TakeQueue() {
  std::vector<Task> tasks(std::make_move_iterator(queue_.begin()),
                          std::make_move_iterator(queue_.end()));
  queue_.clear();
  return tasks;
}

bool WorkerPool::State::WakeOrStart(Outcome& outcome) {
  if (!idle_.empty()) {
    // The submitting thread; or the one that worked last, if possible one that
    // does not take part in the work: the task might wait there.
    auto chosen = std::find(idle_.begin(), idle_.end(), Visitor());
    if (chosen == idle_.end()) {
      --chosen;
      if ((*chosen)->visit != nullptr && chosen != idle_.begin()) --chosen;
    }
    Thread* const thread = *chosen;
    idle_.erase(chosen);
    outcome.woken = thread->Wake();
    ++waking_;
    return true;
  }
  JoinEnded();
  if (static_cast<int>(threads_.size()) >= options_.max_threads) return false;
  Thread& thread = threads_.emplace_back(this);
  absl::StatusOr<std::thread> started = StartNamedThread(
      absl::StrCat(options_.name, "-", threads_.size()),
      [state = shared_from_this(), self = &thread] { state->Main(self); });
  if (!started.ok()) {
    threads_.pop_back();
    SHERD_LOG(kWarning) << "handlers: " << started.status();
    return false;
  }
  // The thread uses this field only to end, and for that it needs the lock.
  thread.thread = *std::move(started);
  ++waking_;
  return true;
}

void WorkerPool::State::Main(Thread* self) {
  BlockingObserver::OfThread() = self;
  mutex_.Lock();
  --waking_;
  bool runs = IsWorthAThread();
  bool stalled = false;
  for (;;) {
    if (!queue_.empty() && (stalled || (runs && MayRun()))) {
      RunTask();
      // It is awake.
      runs = true;
      stalled = false;
      continue;
    }
    if (stopping_) break;
    const Found found = Sleep(self);
    if (found == Found::kNothing && threads_.size() > 1) break;
    stalled = found == Found::kStall;
    runs = found == Found::kPause || IsWorthAThread();
  }
  BlockingObserver::OfThread() = nullptr;
  for (auto it = threads_.begin(); it != threads_.end(); ++it) {
    if (&*it != self) continue;
    ended_.splice(ended_.end(), threads_, it);
    break;
  }
  mutex_.Unlock();
}

void WorkerPool::State::RunTask() {
  Task task = std::move(queue_.front());
  queue_.pop_front();
  ++begun_;
  ++active_;
  Outcome outcome = Serve();
  mutex_.Unlock();
  Complete(std::move(outcome), AllWait());
  const auto begin = Deadline::Clock::now();
  task(absl::OkStatus());
  task = nullptr;
  const std::chrono::nanoseconds time = Deadline::Clock::now() - begin;
  mutex_.Lock();
  --active_;
  task_time_ += (time - task_time_) / 8;
}

WorkerPool::State::Found WorkerPool::State::Sleep(Thread* self) {
  self->woken = false;
  idle_.push_back(self);
  Found found = Found::kNothing;
  if (!queue_.empty() && watching_ == 0) {
    ++watching_;
    found = Watch(self);
    --watching_;
  } else {
    const Deadline deadline = Deadline::After(
        threads_.size() == 1 ? absl::InfiniteDuration() : options_.idle);
    if (!visited_) Visit(self, deadline);
    bool late = false;
    while (!self->woken && !late) {
      late = self->wake->WaitWithTimeout(&mutex_, deadline.Remaining());
    }
  }
  if (self->woken) {
    --waking_;
    return Found::kTasks;
  }
  idle_.erase(std::find(idle_.begin(), idle_.end(), self));
  return found;
}

WorkerPool::State::Found WorkerPool::State::Watch(Thread* self) {
  uint64_t begun = begun_;
  Deadline stall = Deadline::After(options_.stall);
  while (!self->woken) {
    self->wake->WaitWithTimeout(&mutex_,
                                std::min(options_.pause, stall.Remaining()));
    if (self->woken) break;
    if (begun != begun_) {
      begun = begun_;
      stall = Deadline::After(options_.stall);
    } else if (queue_.empty()) {
      break;
    } else if (MayRun()) {
      return Found::kPause;
    } else if (stall.HasPassed()) {
      return Found::kStall;
    }
  }
  return Found::kTasks;
}

void WorkerPool::State::Visit(Thread* self, Deadline deadline) {
  const std::shared_ptr<SharedWork> work = work_;
  if (work == nullptr) return;
  SharedWork::Wait wait(*work);
  self->visit = &wait;
  visited_ = true;
  mutex_.Unlock();
  // What it runs meanwhile is not a task.
  BlockingObserver::OfThread() = nullptr;
  Visitor() = self;
  work->WorkUntil(wait, deadline);
  Visitor() = nullptr;
  BlockingObserver::OfThread() = self;
  mutex_.Lock();
  self->visit = nullptr;
  visited_ = false;
}

void WorkerPool::State::JoinEnded() {
  // They do not take the lock any more.
  for (Thread& thread : ended_) {
    if (thread.thread.joinable()) thread.thread.join();
  }
  ended_.clear();
}

void WorkerPool::State::BeginBlocked(WaitFor what, int** place) {
  Outcome outcome;
  {
    absl::MutexLock lock(&mutex_);
    *place = what == WaitFor::kCalls           ? &blocked_
             : working_ < options_.concurrency ? &working_
                                               : &active_;
    --active_;
    ++**place;
    outcome = Serve();
  }
  Complete(std::move(outcome), AllWait());
}

void WorkerPool::State::EndBlocked(int* place) {
  absl::MutexLock lock(&mutex_);
  ++active_;
  --*place;
}

absl::Status WorkerPool::State::Stop(Deadline deadline) {
  Outcome outcome;
  size_t left = 0;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    outcome.refused = TakeQueue();
    while (!idle_.empty()) {
      Outcome each;
      WakeOrStart(each);
      if (each.woken != nullptr) each.woken->Signal();
    }
  }
  Complete(std::move(outcome),
           absl::CancelledError("the pool of handlers was stopped"));
  {
    absl::MutexLock lock(&mutex_);
    const auto none_left = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return threads_.empty();
    };
    mutex_.AwaitWithTimeout(absl::Condition(&none_left), deadline.Remaining());
    JoinEnded();
    left = threads_.size();
    for (Thread& thread : threads_) {
      if (thread.thread.joinable()) thread.thread.detach();
    }
  }
  if (left == 0) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat(left, " handlers have not returned"));
}

WorkerPool::Counts WorkerPool::State::counts() const {
  absl::MutexLock lock(&mutex_);
  return {.threads = static_cast<int>(threads_.size()),
          .blocked = blocked_ + working_,
          .queued = queue_.size()};
}

WorkerPool::WorkerPool(WorkerPoolOptions options)
    : state_(std::make_shared<State>(std::move(options))) {}

WorkerPool::~WorkerPool() {
  (void)state_->Stop(Deadline::After(absl::ZeroDuration()));
}

void WorkerPool::Share(std::shared_ptr<SharedWork> work) {
  state_->Share(std::move(work));
}

void WorkerPool::Submit(Task task) { state_->Submit(std::move(task)); }

bool WorkerPool::HasQueued() const { return state_->HasQueued(); }

absl::Status WorkerPool::Stop(Deadline deadline) {
  return state_->Stop(deadline);
}

WorkerPool::Counts WorkerPool::counts() const { return state_->counts(); }

}  // namespace sherd::internal
