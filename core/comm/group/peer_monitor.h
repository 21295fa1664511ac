#ifndef SHERD_CORE_COMM_GROUP_PEER_MONITOR_H_
#define SHERD_CORE_COMM_GROUP_PEER_MONITOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/group/failure_log.h"
#include "sherd/core/comm/group/membership.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/comm/store/watched_store.h"

namespace sherd::internal {

// Tracks which ranks of a group are alive, which one failed first, and why: the
// group's health as this rank knows it.
//
// The first failure poisons: from then on usable() is false and health()
// returns the cause. The FailureLog determines the root cause, independently of
// the connection on which this rank noticed the failure.
//
// Threads. Safe from any thread.
class PeerMonitor {
 public:
  // The owner of the group.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Makes running operations end soon. Does not wait for them.
    virtual void EndOperations() = 0;
    // `rank` is known to be the root cause of the failure.
    virtual void FoundFailedRank(int rank) = 0;
  };

  // All arguments outlive it. A process that is not a member has no peers, and
  // never fails.
  PeerMonitor(std::shared_ptr<Store> store, const Membership& membership,
              Owner& owner);
  PeerMonitor(const PeerMonitor&) = delete;
  PeerMonitor& operator=(const PeerMonitor&) = delete;

  // The group's store for ranks that connect: its waits end when a rank has
  // failed. For members only.
  WatchedStore& meeting() { return *meeting_; }

  // Whether the group is neither poisoned nor left. A load.
  bool usable() const { return usable_.load(std::memory_order_acquire); }
  // OK, or the error that poisoned the group, even if this rank has left since.
  absl::Status cause() const;
  // As cause(), or the error that this rank has left.
  absl::Status health() const;
  // The error for `operation`, which is not begun because usable() is false.
  absl::Status Refusal(absl::string_view operation, uint64_t sequence) const;
  // Sends `value` to all ranks; as FailureLog::Exchange.
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view name,
                                                    absl::string_view value,
                                                    Deadline deadline) {
    return log_->Exchange(name, value, deadline);
  }

  // Poisons the group because `operation` ended with `symptom`: notifies the
  // other ranks, ends running operations, and returns the error to report, with
  // the root cause. Waits up to FailureLog::kGrace for the other ranks'
  // reports.
  absl::Status Fail(absl::string_view operation, uint64_t sequence,
                    absl::Status symptom);
  // Reports to the other ranks why this one does not become a member, and
  // returns the root cause.
  absl::Status FailToConnect(absl::Status symptom);
  // Reports to the other ranks that this one failed by itself.
  void Report(const absl::Status& status);

  // Poisons the group at this program's request, unless it is poisoned already.
  // False if this rank has left.
  bool Abort(const absl::Status& cause);

  // Marks this rank as making no more calls. False if it was marked before.
  bool BeginToLeave();
  bool has_left() const;
  // Notifies the other ranks, before connections close.
  void ReportLeaving() { log_->ReportLeaving(); }

  // Records that the survivors continue without `ranks`.
  void LeaveOut(absl::Span<const int> ranks);
  // Ranks that failed, as far as this rank knows, ascending.
  std::vector<int> FailedRanks() const;

  // For ranks that wait for all others; as FailureLog::FindFailedRank.
  std::optional<int> FindFailedRank() const { return log_->FindFailedRank(); }
  // Returns an error with a rank of this host whose process ended, otherwise
  // OK; if `ask_others`, also one with the rank that others report.
  absl::Status FindDeadPeer(bool ask_others) const;
  bool HasExited(int rank) const { return log_->HasExited(rank); }
  bool IsStopped(int rank) const { return log_->IsStopped(rank); }

 private:
  absl::Status FindCause(std::optional<int> peer, absl::Status symptom) const;

  const Membership& membership_;
  Owner& owner_;
  // Null if this process is not a member.
  const std::unique_ptr<FailureLog> log_;
  const std::unique_ptr<WatchedStore> meeting_;
  // Held while the root cause of a failure is determined.
  absl::Mutex cause_mutex_ ABSL_ACQUIRED_BEFORE(state_mutex_);
  mutable absl::Mutex state_mutex_;
  // False once poison_ or left_ is set: read without the lock.
  std::atomic<bool> usable_{true};
  absl::Status poison_ ABSL_GUARDED_BY(state_mutex_);
  bool left_ ABSL_GUARDED_BY(state_mutex_) = false;
  // Ranks without which the survivors continued.
  std::vector<int> left_out_ ABSL_GUARDED_BY(state_mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_GROUP_PEER_MONITOR_H_
