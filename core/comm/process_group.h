#ifndef SHERD_CORE_COMM_PROCESS_GROUP_H_
#define SHERD_CORE_COMM_PROCESS_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/comm/backend.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/comm/work.h"

namespace sherd {

namespace internal {
class CollectiveQueue;
class FailureBoard;
}  // namespace internal

struct CollectiveOptions {
  // How long this call may take. Unset: the group's timeout.
  std::optional<absl::Duration> timeout;
};

struct ProcessGroupOptions {
  std::string name = "default";
  int rank = 0;
  int size = 1;
  // Shared by all ranks and used by nobody but this group.
  std::shared_ptr<Store> store;
  // For joining, and for each collective unless the call says otherwise.
  absl::Duration timeout = absl::Minutes(5);
  // Called once, when this rank has left the group.
  std::function<void()> on_destroy;
};

// An ordered set of ranks that call collectives together.
//
// Collective calls. Every rank of the group makes the same calls in the same
// order. Lengths are bytes, since nothing here computes; P is size().
//
// Errors. No call throws. The ErrorInfo of an error carries group, operation,
// sequence number and, where known, the rank to blame:
//   kInvalidArgument     Buffers, root or their number do not fit the rules of
//                        the call. Nothing was sent and the group stays
//                        usable; peers whose call was right wait for this
//                        rank until their deadline.
//   kUnavailable         A rank died or left. The group is poisoned.
//   kDeadlineExceeded    The call's time is over; the message names the ranks
//                        that did not come. The group is poisoned.
//   kFailedPrecondition  The group is poisoned or destroyed; the message holds
//                        the first cause, and its rank is the one to blame.
// After an error that poisons, receive buffers are unspecified, every later
// call fails at once and only Destroy() is of use.
//
// Threads. Calls may come from any thread, but calls that may overlap must be
// ordered by the caller, because ranks have to agree on the order.
class ProcessGroup {
 public:
  // Connects this rank to the ranks that share `store`. Collective: returns
  // once all of them called it, or at the deadline. Users call Init.
  //   kDeadlineExceeded   Some ranks did not come; named.
  //   kInvalidArgument    Ranks differ about the world size, or a rank is
  //                       taken: the store is left over from another run.
  static absl::StatusOr<std::shared_ptr<ProcessGroup>> Create(
      const Backend& backend, ProcessGroupOptions options);

  // Destroys the group if that has not been done, without waiting for others.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Number of ranks, at least 1, and this process's place, in [0, size()).
  int size() const { return options_.size; }
  int rank() const { return options_.rank; }
  const std::string& name() const { return options_.name; }
  const BackendInfo& backend() const { return backend_; }
  absl::Duration timeout() const { return options_.timeout; }

  // Returns once every rank has called it.
  absl::Status Barrier(const CollectiveOptions& options = {});

  // Copies root's buffer into every rank's.
  //
  // Layout. buffer[i] == (buffer of rank root)[i] on every rank, for
  // 0 <= i < n; n is the same everywhere. n == 0 sends nothing.
  //
  // Cost. Each rank but root receives n bytes.
  absl::Status Broadcast(MutableBytes buffer, int root,
                         const CollectiveOptions& options = {});

  // Leaves every rank's block on every rank, in rank order.
  //
  // Layout. With n = send.size(), the same on every rank, and recv.size() ==
  // P * n:  recv[r * n + i] == (send of rank r)[i], 0 <= r < P, 0 <= i < n.
  // n == 0 sends nothing and waits for nobody.
  //
  // Buffers. Borrowed until the call returns (or the Work ended); they must
  // not overlap, except that `send` may be this rank's block of `recv`.
  //
  // Cost. Each rank receives (P - 1) * n bytes.
  absl::Status AllGather(ConstBytes send, MutableBytes recv,
                         const CollectiveOptions& options = {});
  Work AllGatherAsync(ConstBytes send, MutableBytes recv,
                      const CollectiveOptions& options = {});

  // Sends sends[r] to rank r and fills recvs[r] from rank r.
  //
  // Layout. Both lists have P entries. recvs[r] on rank k has the length of
  // sends[k] on rank r; the caller ensures it, since ranks do not tell each
  // other. An empty entry is no message: a rank that only sends or only
  // receives waits for nobody else. Entries may lie anywhere, so a contiguous
  // piece of a larger array needs no copy.
  //
  // Buffers. Borrowed, entries and what they point to, until the call returns
  // (or the Work ended). No receive entry overlaps another entry, but
  // sends[rank()] may be recvs[rank()].
  //
  // Cost. Each rank receives the sum of its recvs; its own entry is one
  // memcpy.
  absl::Status AllToAllV(absl::Span<const ConstBytes> sends,
                         absl::Span<const MutableBytes> recvs,
                         const CollectiveOptions& options = {});
  Work AllToAllVAsync(absl::Span<const ConstBytes> sends,
                      absl::Span<const MutableBytes> recvs,
                      const CollectiveOptions& options = {});

  // Leaves the group: waits for this rank's own pending operations, closes its
  // connections and forgets the default group if it is this one. Later calls
  // return kFailedPrecondition. Not collective: call Barrier() first unless it
  // is known that no rank needs this one any more. Again: OK.
  absl::Status Destroy();

  // Ends the group from any thread: running and later calls fail with `cause`.
  void Abort(absl::Status cause);

  // OK while the group is usable, otherwise what poisoned it.
  absl::Status health() const;

  bool IsDestroyed() const;

  // Place for this group's own small data, apart from other groups'.
  Store& store() { return *options_.store; }

 private:
  friend class internal::CollectiveQueue;

  ProcessGroup(const Backend& backend, ProcessGroupOptions options);

  absl::Status Run(CollectiveDesc desc, const CollectiveOptions& options);
  Work Start(CollectiveDesc desc, const CollectiveOptions& options);
  absl::Status PostAndFinish(CollectiveDesc desc);
  absl::Status Transfer(const CollectiveDesc& desc);
  absl::Status Poison(const CollectiveDesc& desc, absl::Status status);
  absl::Status Describe(const CollectiveDesc& desc, absl::Status status) const;
  Deadline DeadlineOf(const CollectiveOptions& options) const;

  const ProcessGroupOptions options_;
  const BackendInfo backend_;
  const std::unique_ptr<internal::FailureBoard> board_;
  std::unique_ptr<Communicator> communicator_;

  // Held while an operation runs: one Post at a time.
  absl::Mutex run_mutex_ ABSL_ACQUIRED_BEFORE(state_mutex_);
  uint64_t sequence_ ABSL_GUARDED_BY(run_mutex_) = 0;

  mutable absl::Mutex state_mutex_;
  absl::Status poison_ ABSL_GUARDED_BY(state_mutex_);
  bool destroyed_ ABSL_GUARDED_BY(state_mutex_) = false;

  // Runs asynchronous calls in order on a thread that the first one starts.
  // Declared last: its thread uses the members above.
  const std::unique_ptr<internal::CollectiveQueue> queue_;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_PROCESS_GROUP_H_
