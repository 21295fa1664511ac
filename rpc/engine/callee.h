#ifndef SHERD_RPC_ENGINE_CALLEE_H_
#define SHERD_RPC_ENGINE_CALLEE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/engine_core.h"
#include "sherd/rpc/engine/incoming_calls.h"

namespace sherd::internal {

class Caller;

// An error of something that this worker has closed, for a caller: a worker
// that has closed it is about to leave, and is unavailable to others.
absl::Status AsCallersSee(const absl::Status& status);

// The calls that workers, this one included, make here; see CallEngine.
class Callee : public std::enable_shared_from_this<Callee> {
 public:
  using Destinations = std::vector<absl::Span<std::byte>>;
  // Contexts of handlers whose results are no longer needed.
  using Contexts = std::vector<std::shared_ptr<CallContext>>;

  explicit Callee(std::shared_ptr<EngineCore> core) : core_(std::move(core)) {}

  // Takes the results of calls to this worker itself; set before the first.
  void SetCaller(std::weak_ptr<Caller> caller) { caller_ = std::move(caller); }

  // Handlers run from here on; earlier calls have waited.
  void Open() ABSL_LOCKS_EXCLUDED(mutex_);

  // As Wire::Handler::OnControl.
  absl::StatusOr<Destinations> OnRequest(int from, RequestHeader request,
                                         uint64_t tail_bytes, uint64_t* ticket);
  // A call of this worker to itself: nothing is copied.
  void AcceptLocal(const RequestHeader& request, Deadline deadline,
                   Payload payload);

  Contexts OnCancel(int from, uint64_t id);
  // Calls that create values here continue, for the workers that hold these.
  Contexts OnGone(int worker);
  // Of all workers.
  Contexts CancelAll();
  Contexts Expire(Deadline::Clock::time_point now);
  Deadline EarliestDeadline() const { return calls_.EarliestDeadline(); }
  std::vector<CallUnderWay> UnderWay() const { return calls_.UnderWay(); }

 private:
  class ReplyOnce;
  using Call = std::shared_ptr<IncomingCall>;
  // kInvalidArgument: the message is malformed.
  // kInvalidArgument: such a message is never sent.
  absl::Status TakeReferences(const RequestHeader& request, IncomingCall& call);
  absl::Status FindHandler(absl::string_view method, uint64_t signature,
                           IncomingCall& call) const;
  // Counts the call as running, and its bytes as held, until the last handle
  // of the result is destroyed.
  std::shared_ptr<void> MarkRunning(uint64_t bytes);
  absl::Status MakeRoom(RequestHeader& request, IncomingCall& call) const;
  void Admit(Call call);
  void Enqueue(Call call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(const Call& call);
  void Reply(const Call& call, absl::StatusOr<Payload> result);
  // The call was taken, and the result is complete.
  void Deliver(const Call& call, absl::StatusOr<Payload> result);
  void SendReply(const Call& call, Payload result);
  // Writes `status` instead of the result, unless it is OK.
  void WriteReply(const IncomingCall& call, Payload result,
                  PackedTensors packed, uint64_t transfer, absl::Status status);
  absl::Status InjectAt(FaultPoint point, const IncomingCall& call,
                        bool* lost = nullptr) const;
  // Cancels calls that were taken from the table; no reply is sent.
  Contexts Cancel(const std::vector<Call>& calls, const absl::Status& why);

  const std::shared_ptr<EngineCore> core_;
  std::weak_ptr<Caller> caller_;
  IncomingCalls calls_;
  std::atomic<bool> open_{false};
  absl::Mutex mutex_;
  std::vector<Call> early_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_CALLEE_H_
