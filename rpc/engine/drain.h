#ifndef SHERD_RPC_ENGINE_DRAIN_H_
#define SHERD_RPC_ENGINE_DRAIN_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/deadline.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/drain_agreement.h"

namespace sherd::internal {

// Waits for the agreement that no worker has a call outstanding or running.
//
// Threads. Safe from any thread.
class Drain {
 public:
  // Both are called from any thread, `look` under a lock: it must not wait.
  using Send = std::function<void(int to, const DrainHeader& header)>;
  using Describe = std::function<std::string(int worker)>;

  Drain(int rank, int world_size, DrainAgreement::Look look, Send send,
        Describe describe);

  // Returns once all remaining workers called it and none has a call
  // outstanding or running. Later calls return the same at once.
  //   kUnavailable         The same, but some died or gave up first; named.
  //   kDeadlineExceeded    Names the workers that it waited for, or the
  //                        coordinator.
  //   kFailedPrecondition  Another thread is waiting already.
  absl::Status Wait(Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // From another thread: no Wait, running or later, takes longer than until
  // `deadline`.
  void EndBy(Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnMessage(int from, const DrainHeader& header)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Empty `why`: it left.
  void OnGone(int worker, absl::string_view why) ABSL_LOCKS_EXCLUDED(mutex_);

  // This worker may have become idle. Cost. A load while no thread waits.
  void OnIdle() {
    if (waiting_.load(std::memory_order_seq_cst)) Wake();
  }

 private:
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);
  void SendAll(const DrainAgreement::Messages& messages);
  absl::Status Outcome() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Late(Deadline deadline) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string DescribeAll(const std::vector<int>& workers) const;

  const DrainAgreement::Look look_;
  const Send send_;
  const Describe describe_;
  std::atomic<bool> waiting_{false};
  absl::Mutex mutex_;
  absl::CondVar changed_;
  // Something happened since the waiting thread last checked.
  bool news_ ABSL_GUARDED_BY(mutex_) = false;
  // Of EndBy.
  Deadline limit_ ABSL_GUARDED_BY(mutex_) = Deadline::Infinite();
  DrainAgreement agreement_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_DRAIN_H_
