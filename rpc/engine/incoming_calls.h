#ifndef SHERD_RPC_ENGINE_INCOMING_CALLS_H_
#define SHERD_RPC_ENGINE_INCOMING_CALLS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/deadline.h"
#include "sherd/rpc/call/handler_registry.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/engine/call_statistics.h"
#include "sherd/rpc/ownership/reference_service.h"

namespace sherd::internal {

// A call that another worker, or this one, made here.
struct IncomingCall {
  int from = 0;
  uint64_t id = 0;
  std::shared_ptr<CallContext> context;
  std::shared_ptr<const RawHandler> handler;
  // The transfer of the references that it brought; 0: none.
  uint64_t reference_transfer = 0;
  // The value that its result becomes, if it stays here.
  std::optional<ReferenceService::Value> value;
  const Deadline::Clock::time_point started = Deadline::Clock::now();
  // When its handler began.
  Deadline::Clock::time_point begun;
  // As CallUnderWay has it.
  std::atomic<const char*> state{"arriving"};
  // Guarded by the table, then owned by the thread that took the call.
  Payload payload;
  // Released with the call: while it exists, the call is running.
  std::shared_ptr<void> running;
};

// The calls that were made here and have not been answered. The thread that
// removes one answers it; a call whose caller no longer waits is removed when
// that is noticed, and no reply is sent.
//
// Threads. Safe from any thread.
class IncomingCalls {
 public:
  // Returns false if there is such a call.
  bool Add(std::shared_ptr<IncomingCall> call) ABSL_LOCKS_EXCLUDED(mutex_);

  // The payload, for the handler; nothing if the call has been removed.
  std::optional<Payload> Begin(const IncomingCall& call)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Sets the handles of its payload's references, which Begin then returns;
  // false if the call has been removed.
  bool Admit(const IncomingCall& call,
             std::vector<std::shared_ptr<void>>& handles)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Null if there is no such call.
  std::shared_ptr<IncomingCall> Take(int from, uint64_t id)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes all that `chosen` accepts.
  std::vector<std::shared_ptr<IncomingCall>> TakeIf(
      const std::function<bool(const IncomingCall&)>& chosen)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // All calls, for diagnosis.
  std::vector<CallUnderWay> UnderWay() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The earliest deadline of all calls.
  Deadline EarliestDeadline() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Key = std::pair<int, uint64_t>;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<Key, std::shared_ptr<IncomingCall>> calls_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_INCOMING_CALLS_H_
