#include "sherd/rpc/link/dialer.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/named_thread.h"

namespace sherd::internal {
namespace {

// How long the first attempt waits for an answer, and the limit of any other.
// On a host where hundreds of workers start, an answer may take seconds.
constexpr absl::Duration kFirstAttempt = absl::Milliseconds(500);
constexpr absl::Duration kLongestAttempt = absl::Seconds(8);
// Between two attempts.
constexpr absl::Duration kPause = absl::Milliseconds(20);

struct Dialing {
  Dialer::Request request;
  absl::Duration attempt = kFirstAttempt;
  Deadline not_before = Deadline::After(absl::ZeroDuration());
};

bool IsWorthAnotherAttempt(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

// Returns the connection, or the error; kDeadlineExceeded, kUnavailable and
// kResourceExhausted: try again, if there is time left.
absl::StatusOr<UniqueFd> Attempt(const Dialing& dialing) {
  DialOptions where = dialing.request.where;
  where.deadline =
      Deadline::Earlier(where.deadline, Deadline::After(dialing.attempt));
  absl::StatusOr<UniqueFd> socket = Dial(where);
  if (socket.ok() || !IsWorthAnotherAttempt(socket.status())) return socket;
  if (absl::Status status = dialing.request.check(); !status.ok()) {
    return status;
  }
  return socket;
}

}  // namespace

// Held by the threads, which are not waited for.
struct Dialer::Shared {
  absl::Mutex mutex;
  std::deque<Dialing> waiting ABSL_GUARDED_BY(mutex);
  int threads ABSL_GUARDED_BY(mutex) = 0;
  bool has_ended ABSL_GUARDED_BY(mutex) = false;

  // The next connection to try, once it is due; nothing, and one thread less,
  // if there is none.
  std::optional<Dialing> Next() ABSL_LOCKS_EXCLUDED(mutex);
  // Ends the dialing, or queues it for another attempt.
  void Take(absl::StatusOr<UniqueFd> socket, Dialing dialing)
      ABSL_LOCKS_EXCLUDED(mutex);
};

std::optional<Dialing> Dialer::Shared::Next() {
  absl::MutexLock lock(&mutex);
  if (!has_ended && !waiting.empty()) {
    Dialing dialing = std::move(waiting.front());
    waiting.pop_front();
    mutex.AwaitWithTimeout(absl::Condition(&has_ended),
                           dialing.not_before.Remaining());
    if (!has_ended) return dialing;
  }
  --threads;
  return std::nullopt;
}

void Dialer::Shared::Take(absl::StatusOr<UniqueFd> socket, Dialing dialing) {
  absl::MutexLock lock(&mutex);
  if (has_ended) return;
  if (socket.ok() || !IsWorthAnotherAttempt(socket.status()) ||
      dialing.request.where.deadline.HasPassed()) {
    return dialing.request.done(std::move(socket));
  }
  dialing.attempt = std::min(2 * dialing.attempt, kLongestAttempt);
  dialing.not_before = Deadline::After(kPause);
  waiting.push_back(std::move(dialing));
}

Dialer::Dialer() : shared_(std::make_shared<Shared>()) {}

Dialer::~Dialer() {
  std::deque<Dialing> dropped;
  absl::MutexLock lock(&shared_->mutex);
  shared_->has_ended = true;
  dropped.swap(shared_->waiting);
}

void Dialer::Start(Request request) {
  absl::MutexLock lock(&shared_->mutex);
  shared_->waiting.push_back({.request = std::move(request)});
  if (shared_->threads >= kThreads) return;
  absl::StatusOr<std::thread> thread =
      StartNamedThread("sherd-rpc-dial", [shared = shared_] {
        while (std::optional<Dialing> dialing = shared->Next()) {
          absl::StatusOr<UniqueFd> socket = Attempt(*dialing);
          shared->Take(std::move(socket), *std::move(dialing));
        }
      });
  if (thread.ok()) {
    thread->detach();
    ++shared_->threads;
    return;
  }
  if (shared_->threads > 0) return;
  // No other thread dials, so it is the only one.
  const Dialing dialing = std::move(shared_->waiting.back());
  shared_->waiting.pop_back();
  dialing.request.done(thread.status());
}

}  // namespace sherd::internal
