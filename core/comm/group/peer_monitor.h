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

// Which ranks of a group are alive, which one failed first, and why: the
// group's health as this rank knows it.
//
// The first failure poisons: from then on usable() is false and health() says
// why. Which rank is the root cause is found in the FailureLog, whatever the
// connection on which this rank noticed it.
//
// Threads. Safe from any thread.
class PeerMonitor {
 public:
  // Whose group this is.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Makes operations that are under way end soon. Waits for none of them.
    virtual void EndOperations() = 0;
    // `rank` is known to be the root cause of the failure.
    virtual void FoundFailedRank(int rank) = 0;
  };

  // All outlive it. What is not a member has no peers, and never fails.
  PeerMonitor(std::shared_ptr<Store> store, const Membership& membership,
              Owner& owner);
  PeerMonitor(const PeerMonitor&) = delete;
  PeerMonitor& operator=(const PeerMonitor&) = delete;

  // The group's store for those who connect: nobody waits there for a rank that
  // is lost. Of members only.
  WatchedStore& meeting() { return *meeting_; }

  // Whether the group is neither poisoned nor left. A load.
  bool usable() const { return usable_.load(std::memory_order_acquire); }
  // OK, or what poisoned the group, also where it was left since.
  absl::Status cause() const;
  // The same, or that this rank has left.
  absl::Status health() const;
  // Why `operation` is not begun, when usable() is false.
  absl::Status Refusal(absl::string_view operation, uint64_t sequence) const;
  // Sends `value` to all ranks; as FailureLog::Exchange.
  absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view name,
                                                    absl::string_view value,
                                                    Deadline deadline) {
    return log_->Exchange(name, value, deadline);
  }

  // Poisons the group because `operation` ended with `symptom`: tells the other
  // ranks, ends what is under way, and returns what is to be said of it, with
  // the root cause. Waits up to FailureLog::kGrace for the other ranks'
  // reports.
  absl::Status Fail(absl::string_view operation, uint64_t sequence,
                    absl::Status symptom);
  // Tells the other ranks why this one does not become a member, and returns
  // the root cause.
  absl::Status FailToConnect(absl::Status symptom);
  // Tells the other ranks that this one failed by itself.
  void Report(const absl::Status& status);

  // Poisons the group because this program wants it, unless it is poisoned.
  // False if this rank has left.
  bool Abort(const absl::Status& cause);

  // Marks that this rank makes no more calls. False if it was marked before.
  bool BeginToLeave();
  bool has_left() const;
  // Tells the other ranks, before connections close.
  void ReportLeaving() { log_->ReportLeaving(); }

  // Notes that survivors go on without `ranks`.
  void LeaveOut(absl::Span<const int> ranks);
  // Ranks that failed, as far as this rank knows, ascending.
  std::vector<int> FailedRanks() const;

  // For ranks that wait for all others; as FailureLog::FindLost.
  std::optional<int> FindLost() const { return log_->FindLost(); }
  // An error with a rank whose process ended on this host, otherwise OK; if
  // `ask_others`, also with the one that others report.
  absl::Status FindDeadPeer(bool ask_others) const;
  bool IsGone(int rank) const { return log_->IsGone(rank); }
  bool IsStopped(int rank) const { return log_->IsStopped(rank); }

 private:
  absl::Status FindCause(std::optional<int> peer, absl::Status symptom) const;

  const Membership& membership_;
  Owner& owner_;
  // Null if this process is not a member.
  const std::unique_ptr<FailureLog> log_;
  const std::unique_ptr<WatchedStore> meeting_;
  // Held while the cause of a failure is looked for.
  absl::Mutex cause_mutex_ ABSL_ACQUIRED_BEFORE(state_mutex_);
  mutable absl::Mutex state_mutex_;
  // False once poison_ or left_ is set: looked at without the lock.
  std::atomic<bool> usable_{true};
  absl::Status poison_ ABSL_GUARDED_BY(state_mutex_);
  bool left_ ABSL_GUARDED_BY(state_mutex_) = false;
  // Ranks without which survivors went on.
  std::vector<int> left_out_ ABSL_GUARDED_BY(state_mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_GROUP_PEER_MONITOR_H_
