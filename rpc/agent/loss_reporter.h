#ifndef SHERD_RPC_AGENT_LOSS_REPORTER_H_
#define SHERD_RPC_AGENT_LOSS_REPORTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/rpc/link/wire.h"

namespace sherd::internal {

// Passes all events on to a handler, and reports lost workers to the program.
//
// Threads. Safe from any thread.
class LossReporter final : public Wire::Handler {
 public:
  using Notify = std::function<void(int rank, const absl::Status& why)>;

  // `next` outlives it.
  explicit LossReporter(Wire::Handler* next) : next_(next) {}

  // See RpcAgent::OnWorkerLost.
  void Add(Notify notify) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::map<int, absl::Status> known;
    {
      absl::MutexLock lock(&mutex_);
      known = lost_;
      if (!closed_) notify_.push_back(notify);
    }
    for (const auto& [rank, why] : known) notify(rank, why);
  }

  // Releases all that were added. After the wire has ended.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_) {
    // Destroyed without the lock.
    std::vector<Notify> released;
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    released.swap(notify_);
  }

  std::map<int, absl::Status> lost() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return lost_;
  }

  absl::StatusOr<std::vector<absl::Span<std::byte>>> OnControl(
      int from, absl::string_view control, uint64_t tail_bytes,
      uint64_t* ticket) override {
    return next_->OnControl(from, control, tail_bytes, ticket);
  }
  void OnTail(int from, uint64_t ticket) override {
    next_->OnTail(from, ticket);
  }
  void OnLost(int worker, const absl::Status& why) override {
    std::vector<Notify> notify;
    {
      absl::MutexLock lock(&mutex_);
      lost_[worker] = why;
      notify = notify_;
    }
    next_->OnLost(worker, why);
    for (const Notify& one : notify) one(worker, why);
  }
  void OnLeft(int worker, const absl::Status& why) override {
    next_->OnLeft(worker, why);
  }

 private:
  Wire::Handler* const next_;
  mutable absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int, absl::Status> lost_ ABSL_GUARDED_BY(mutex_);
  std::vector<Notify> notify_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_AGENT_LOSS_REPORTER_H_
