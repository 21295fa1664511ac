#ifndef SHERD_RPC_ENGINE_OUTGOING_CALLS_H_
#define SHERD_RPC_ENGINE_OUTGOING_CALLS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/engine/call_statistics.h"
#include "sherd/rpc/ownership/reference_id.h"

namespace sherd::internal {

// A call that this worker made.
struct OutgoingCall {
  uint64_t id = 0;
  int to = 0;
  std::string method;
  Deadline deadline = Deadline::Infinite();
  Deadline::Clock::time_point started;
  // Called once, by the thread that took the call from the table.
  std::function<void(absl::StatusOr<Payload>)> done;
  // Receive the tensors of the result; may be empty.
  std::vector<Tensor> out;
  // The request is bulk, so that later messages of the call must be, too.
  bool bulk = false;
  // Of the request, as of WireMessage.
  bool may_wait = false;
  // The transfer of the references that the request carries; 0: none.
  uint64_t reference_transfer = 0;
  // The reference whose value the call creates.
  std::optional<ReferenceId> creation;
  // The handler that made the call, or null.
  std::shared_ptr<CallContext> parent;

  // A thread that ends a call while its request is being sent leaves the recall
  // to the sending thread, so that a cancellation never overtakes the request.
  enum class Departure { kAhead, kLeft, kUnwanted };
  std::atomic<Departure> departure{Departure::kAhead};
  // Why, once it is kUnwanted.
  absl::Status unwanted;
};

// The calls that this worker made and that have not ended. The thread that
// takes one from it ends it: so each ends once, and a late reply finds nothing.
//
// While a reply is received into a call's `out`, the call cannot end, since the
// caller may reuse that memory once it has: the end is deferred until all bytes
// have arrived or their worker is lost.
//
// Threads. Safe from any thread.
// Cost. A lock that calls of other numbers hardly ever share.
class OutgoingCalls {
 public:
  // Adds `call` under its id, a number of NextId.
  void Add(std::shared_ptr<OutgoingCall> call);
  uint64_t NextId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }

  // Null if there is no such call (to worker `to`, if that is not -1), or its
  // end is deferred; then the end is `status` unless there was one before.
  std::shared_ptr<OutgoingCall> Take(uint64_t id, const absl::Status& status,
                                     int to = -1);

  // Takes all that `chosen` accepts, under the lock of the call.
  std::vector<std::shared_ptr<OutgoingCall>> TakeIf(
      const std::function<bool(const OutgoingCall&)>& chosen,
      const absl::Status& status);

  // A reply from `from` is about to arrive. Returns nothing if there is no such
  // call, otherwise its `out`; with an `out`, the call does not end before
  // Release.
  std::optional<std::vector<Tensor>> Claim(uint64_t id, int from);

  // Takes a call that was claimed, or that has no `out` and may have ended:
  // then null. `end`: the deferred end, or OK.
  std::shared_ptr<OutgoingCall> Release(uint64_t id, absl::Status& end);

  // The system has the request of this call, if the call has not ended.
  void MarkSent(uint64_t id);

  // All calls that have not ended, for diagnosis.
  std::vector<CallUnderWay> UnderWay() const;

  // The earliest deadline of all calls whose end is not deferred.
  Deadline EarliestDeadline() const;

 private:
  struct Entry {
    std::shared_ptr<OutgoingCall> call;
    bool sent = false;
    bool claimed = false;
    absl::Status end;
  };
  struct Shard {
    mutable absl::Mutex mutex;
    absl::flat_hash_map<uint64_t, Entry> calls ABSL_GUARDED_BY(mutex);
  };
  static constexpr size_t kShards = 16;

  Shard& ShardOf(uint64_t id) { return shards_[id % kShards]; }

  std::atomic<uint64_t> next_id_{1};
  std::array<Shard, kShards> shards_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_OUTGOING_CALLS_H_
