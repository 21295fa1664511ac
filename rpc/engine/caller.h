#ifndef SHERD_RPC_ENGINE_CALLER_H_
#define SHERD_RPC_ENGINE_CALLER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/handler_registry.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/engine_core.h"
#include "sherd/rpc/engine/outgoing_calls.h"
#include "sherd/rpc/ownership/reference_message.h"

namespace sherd::internal {

class Callee;

struct CallOptions {
  absl::Duration timeout = absl::Seconds(60);
  // Receive the tensors of the result, in their order; undefined ones are
  // allocated, and all of them are if it is empty.
  std::vector<Tensor> out = {};
  // Other calls may follow closely; see WireMessage.
  bool may_wait = false;
  // The kCreate of the reference whose value the result becomes, at the
  // callee; `done` then gets an empty result.
  std::optional<ReferenceMessage> creation = std::nullopt;
};

// The calls that this worker makes; see CallEngine.
class Caller : public std::enable_shared_from_this<Caller> {
 public:
  using Destinations = std::vector<absl::Span<std::byte>>;

  // `callee` handles the calls to this worker itself.
  Caller(std::shared_ptr<EngineCore> core, std::shared_ptr<Callee> callee)
      : core_(std::move(core)), callee_(std::move(callee)) {}

  uint64_t Start(int to, absl::string_view method, uint64_t signature,
                 Payload request, const CallOptions& options,
                 ReplyFunction done);
  void Cancel(uint64_t id);
  void FailAll(const absl::Status& why);
  // FailAll, and so later calls.
  void Close(const absl::Status& why);

  // As Wire::Handler::OnControl.
  absl::StatusOr<Destinations> OnReply(int from, ReplyHeader reply,
                                       uint64_t tail_bytes, uint64_t* ticket);
  // The result of a call to this worker.
  void OnLocalReply(uint64_t id, absl::StatusOr<Payload> result);

  void OnGone(int worker, const absl::Status& why);
  // The handlers of these calls are cancelled: cancels the calls that they
  // made.
  void CancelChildren(
      const std::vector<std::shared_ptr<CallContext>>& contexts);
  // Ends the calls that have expired; returns the earliest deadline of the
  // rest.
  Deadline Expire(Deadline::Clock::time_point now);
  std::vector<CallUnderWay> UnderWay() const { return calls_.UnderWay(); }

 private:
  struct Landed;
  using Call = std::shared_ptr<OutgoingCall>;

  absl::Status CheckStart(int to, const OutgoingCall& call) const;
  // End the call if it cannot begin.
  void Launch(const Call& call, RequestHeader header, Payload request);
  void SendRequest(const Call& call, RequestHeader header, Payload request,
                   PackedTensors packed, const absl::Status& ready);
  absl::Status TrySend(const Call& call, RequestHeader header, Payload request,
                       PackedTensors packed);
  // The request of this call was sent, or never will be.
  void OnSent(const Call& call, const absl::Status& end);
  // The tail of a reply has arrived, or never will.
  void OnLanded(std::shared_ptr<Landed> landed, const absl::Status& status);
  void Settle(std::shared_ptr<Landed> landed);
  // Moves the tensors to where the caller wants them.
  absl::Status Place(Landed& landed) const;
  // Ends the call with its result.
  void Deliver(Landed& landed, const absl::Status& status);
  // Both end a call that was taken; Abandon also notifies the callee.
  void Finish(Call call, absl::StatusOr<Payload> result);
  void Abandon(Call call, const absl::Status& why);
  // The request was sent, and its reply is no longer needed.
  void Recall(const OutgoingCall& call, const absl::Status& why);
  void NotSent(const OutgoingCall& call, const absl::Status& why);
  std::string Describe(const OutgoingCall& call) const;

  const std::shared_ptr<EngineCore> core_;
  const std::shared_ptr<Callee> callee_;
  OutgoingCalls calls_;
  std::atomic<bool> closed_{false};
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_ENGINE_CALLER_H_
