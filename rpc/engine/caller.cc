#include "sherd/rpc/engine/caller.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/scoped_blocked.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/devices/device_staging.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/callee.h"
#include "sherd/rpc/engine/engine_core.h"
#include "sherd/rpc/engine/landings.h"
#include "sherd/rpc/engine/outgoing_calls.h"
#include "sherd/rpc/link/wire.h"

namespace sherd::internal {
namespace {

using Clock = Deadline::Clock;

absl::Status LateError(const OutgoingCall& call) {
  // Rounded to a millisecond: the clock was read after the timeout began.
  const absl::Duration given =
      absl::Trunc(absl::FromChrono(call.deadline.when() - call.started) +
                      absl::Microseconds(500),
                  absl::Milliseconds(1));
  return absl::DeadlineExceededError(
      absl::StrCat("no reply within ", absl::FormatDuration(given)));
}

// kCancelled if the handler that makes the call was cancelled. OK if only its
// deadline has passed, which is another error.
absl::Status CheckParent(const OutgoingCall& call) {
  if (call.parent == nullptr || !call.parent->cancelled() ||
      call.deadline.HasPassed()) {
    return absl::OkStatus();
  }
  return absl::CancelledError(absl::StrCat("the handler of ",
                                           call.parent->method(),
                                           " that makes it was cancelled"));
}

absl::Status ClosedError() {
  return absl::FailedPreconditionError("RPC was shut down");
}

}  // namespace

// A reply between the wire and the caller.
struct Caller::Landed {
  int from = 0;
  uint64_t call = 0;
  Payload payload;
  // Of its references; 0: none.
  uint64_t reference_transfer = 0;
  std::vector<Tensor> out;
};

uint64_t Caller::Start(int to, absl::string_view method, uint64_t signature,
                       Payload request, const CallOptions& options,
                       ReplyFunction done) {
  auto call = std::make_shared<OutgoingCall>();
  const uint64_t id = calls_.NextId();
  call->id = id;
  call->to = to;
  call->method = std::string(method);
  call->started = Clock::now();
  call->deadline = Deadline::After(options.timeout);
  call->done = std::move(done);
  call->out = options.out;
  call->may_wait = options.may_wait;
  RequestHeader header = {
      .call = id, .method = call->method, .signature = signature};
  if (options.creation.has_value()) {
    call->creation = options.creation->id;
    header.creation_number = options.creation->id.number;
    header.creation_sequence = options.creation->sequence;
  }
  call->parent = CallContext::Current();
  if (call->parent != nullptr) {
    call->deadline =
        Deadline::Earlier(call->deadline, call->parent->deadline());
  }
  if (const absl::Status status = CheckStart(to, *call); !status.ok()) {
    const bool known = to >= 0 && to < core_->options.world_size;
    NotSent(*call, status);
    call->done(Annotate(
        status, known ? Describe(*call)
                      : absl::StrCat("call ", id, " of ", call->method)));
    return id;
  }
  core_->counters.outstanding().fetch_add(1);
  core_->counters.Of(to).outstanding.fetch_add(1, std::memory_order_relaxed);
  Launch(call, std::move(header), std::move(request));
  return id;
}

absl::Status Caller::CheckStart(int to, const OutgoingCall& call) const {
  if (core_->outbox.wire() == nullptr) {
    return absl::FailedPreconditionError(
        "RPC Framework needs to be initialized");
  }
  if (to < 0 || to >= core_->options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no worker of rank ", to, "; ranks are 0 to ",
                     core_->options.world_size - 1));
  }
  if (closed_.load()) return ClosedError();
  SHERD_RETURN_IF_ERROR(CheckParent(call));
  if (call.deadline.HasPassed()) {
    return absl::DeadlineExceededError(
        "its deadline had passed before it began");
  }
  return absl::OkStatus();
}

void Caller::Launch(const Call& call, RequestHeader header, Payload request) {
  const int to = call->to;
  PackedTensors packed;
  absl::Status status;
  if (to == core_->options.rank) {
    status = AwaitQueued(request.tensors, call->deadline);
  } else {
    absl::StatusOr<PackedTensors> made = core_->Pack(
        to, request,
        [&](const Device& device) {
          return core_->routes.OfArgument(to, device);
        },
        call->deadline);
    status = made.status();
    if (made.ok()) packed = *std::move(made);
    call->bulk = packed.bulk();
    if (status.ok() && !request.references.empty()) {
      absl::StatusOr<uint64_t> transfer = core_->references->Pass(to, request);
      status = transfer.status();
      if (transfer.ok()) call->reference_transfer = *transfer;
    }
  }
  calls_.Add(call);
  if (status.ok()) status = core_->deadlines.Watch(call->deadline);
  // Close and CancelChildren set this before they search the calls.
  if (status.ok() && closed_.load()) status = ClosedError();
  if (status.ok()) status = CheckParent(*call);
  if (!status.ok() || call->reference_transfer == 0) {
    return SendRequest(call, std::move(header), std::move(request),
                       std::move(packed), status);
  }
  core_->references->WhenReady(
      call->reference_transfer,
      [self = shared_from_this(), call, header = std::move(header),
       request = std::move(request), packed = std::move(packed)](
          const absl::Status& ready, const auto& /*handles*/) mutable {
        self->SendRequest(call, std::move(header), std::move(request),
                          std::move(packed), ready);
      });
}

void Caller::SendRequest(const Call& call, RequestHeader header,
                         Payload request, PackedTensors packed,
                         const absl::Status& ready) {
  using Departure = OutgoingCall::Departure;
  absl::Status status = ready;
  if (call->departure.load() == Departure::kUnwanted) {
    status = call->unwanted;
  }
  if (status.ok()) {
    status =
        TrySend(call, std::move(header), std::move(request), std::move(packed));
  }
  const Departure before = call->departure.exchange(Departure::kLeft);
  if (!status.ok()) {
    NotSent(*call, status);
    if (Call failed = calls_.Take(call->id, status)) {
      Finish(std::move(failed), status);
    }
  } else if (before == Departure::kUnwanted) {
    Recall(*call, call->unwanted);
  }
}

absl::Status Caller::TrySend(const Call& call, RequestHeader header,
                             Payload request, PackedTensors packed) {
  bool lost = false;
  SHERD_RETURN_IF_ERROR(
      MaybeInjectFault({.point = FaultPoint::kRpcBeforeRequest,
                        .rank = core_->options.rank,
                        .subject = call->method,
                        .lost = &lost}));
  if (lost) return absl::OkStatus();
  const int to = call->to;
  if (to == core_->options.rank) {
    calls_.MarkSent(call->id);
    callee_->AcceptLocal(header, call->deadline, std::move(request));
    return absl::OkStatus();
  }
  header.timeout = call->deadline.Remaining();
  SHERD_ASSIGN_OR_RETURN(
      std::string control,
      EncodeRequest(header, request, call->reference_transfer,
                    packed.exposure.get(), core_->options.limits));
  WorkerCounters& counters = core_->counters.Of(to);
  counters.requests_sent.fetch_add(1);
  core_->IntroduceMemory(to);
  const absl::Status status = core_->Send(
      to, call->id, std::move(control), std::move(packed),
      [self = weak_from_this(), call](const absl::Status& end) {
        if (const auto caller = self.lock()) caller->OnSent(call, end);
      },
      call->may_wait);
  if (!status.ok()) counters.requests_sent.fetch_sub(1);
  MaybeInjectFault({.point = FaultPoint::kRpcAfterRequest,
                    .rank = core_->options.rank,
                    .subject = core_->outbox.wire()->names()[to]})
      .IgnoreError();
  return status;
}

void Caller::OnSent(const Call& call, const absl::Status& end) {
  if (end.ok()) return calls_.MarkSent(call->id);
  if (!WireMessage::IsUnsent(end)) return;
  core_->counters.Of(call->to).requests_sent.fetch_sub(1);
  NotSent(*call, end);
  if (Call unsent = calls_.Take(call->id, end)) {
    Finish(std::move(unsent), end);
  }
}

void Caller::NotSent(const OutgoingCall& call, const absl::Status& why) {
  // A transfer that waits, or that is ready.
  const uint64_t transfer = call.reference_transfer;
  if (transfer != 0 && !core_->references->Abandon(transfer)) {
    core_->references->Unsent(transfer);
  }
  if (call.creation.has_value()) {
    core_->references->RequestNotSent(*call.creation, why);
  }
}

void Caller::Cancel(uint64_t id) {
  const absl::Status why = absl::CancelledError("the caller cancelled it");
  if (Call call = calls_.Take(id, why)) Abandon(std::move(call), why);
}

void Caller::FailAll(const absl::Status& why) {
  for (Call& call :
       calls_.TakeIf([](const OutgoingCall&) { return true; }, why)) {
    Abandon(std::move(call), why);
  }
}

void Caller::Close(const absl::Status& why) {
  closed_ = true;
  FailAll(why);
}

absl::StatusOr<Caller::Destinations> Caller::OnReply(int from,
                                                     ReplyHeader reply,
                                                     uint64_t tail_bytes,
                                                     uint64_t* ticket) {
  if (!reply.status.ok()) {
    if (Call call = calls_.Take(reply.call, reply.status, from)) {
      Finish(std::move(call), std::move(reply.status));
    }
    return Destinations();
  }
  std::shared_ptr<Transfer> transfer;
  if (reply.payload.transfer != 0) {
    transfer = std::make_shared<Transfer>(core_, from, reply.payload);
  }
  std::optional<std::vector<Tensor>> out = calls_.Claim(reply.call, from);
  const uint64_t reference_transfer = reply.payload.reference_transfer;
  if (!out.has_value()) {
    // A late reply: its bytes are dropped.
    if (reference_transfer != 0) {
      core_->references->Decline(from, reference_transfer);
    }
    return Destinations();
  }
  auto landed = std::make_shared<Landed>();
  landed->from = from;
  landed->call = reply.call;
  landed->out = *std::move(out);
  if (reference_transfer != 0) {
    const absl::StatusOr<uint64_t> received = core_->references->Receive(
        from, reference_transfer, reply.payload.references);
    if (!received.ok()) {
      Deliver(*landed, received.status());
      return received.status();
    }
    landed->reference_transfer = *received;
  }
  absl::StatusOr<std::vector<Tensor>> tensors =
      TensorsToLandIn(reply.payload.tensors, landed->out,
                      /*any_strides=*/transfer != nullptr);
  if (!tensors.ok()) {
    Deliver(*landed, tensors.status());
    return Destinations();
  }
  landed->payload.tensors = *std::move(tensors);
  landed->payload.devices =
      DevicesAfterLanding(reply.payload.tensors, landed->out);
  landed->payload.values = std::move(reply.payload.values);
  landed->payload.references = std::move(reply.payload.references);
  return core_->Land(
      from, std::move(transfer), tail_bytes, landed->payload.tensors, ticket,
      [self = shared_from_this(), landed](const absl::Status& end) {
        self->OnLanded(landed, end);
      });
}

void Caller::OnLanded(std::shared_ptr<Landed> landed,
                      const absl::Status& status) {
  if (!status.ok()) return Deliver(*landed, status);
  if (landed->reference_transfer == 0) return Settle(std::move(landed));
  core_->references->WhenReady(landed->reference_transfer,
                               [self = shared_from_this(), landed](
                                   const absl::Status& ready,
                                   std::vector<std::shared_ptr<void>> handles) {
                                 if (!ready.ok())
                                   return self->Deliver(*landed, ready);
                                 landed->payload.references_keep =
                                     std::move(handles);
                                 self->Settle(landed);
                               });
}

void Caller::Settle(std::shared_ptr<Landed> landed) {
  if (landed->payload.devices.empty() &&
      !NeedsCopyIntoOut(landed->out, landed->payload.tensors)) {
    return Deliver(*landed, absl::OkStatus());
  }
  core_->pool.Submit([self = shared_from_this(), landed](absl::Status status) {
    if (status.ok()) status = self->Place(*landed);
    self->Deliver(*landed, status);
  });
}

absl::Status Caller::Place(Landed& landed) const {
  const ScopedBlocked blocked(WaitFor::kWork);
  Payload& payload = landed.payload;
  SHERD_RETURN_IF_ERROR(CopyIntoOut(landed.out, payload.tensors));
  SHERD_RETURN_IF_ERROR(CopyToDevices(payload));
  // The caller may use any streams. The copies cannot be undone, so a
  // deadline would not help.
  return AwaitQueued(payload.tensors, Deadline::Infinite());
}

void Caller::Deliver(Landed& landed, const absl::Status& status) {
  absl::Status end;
  Call call = calls_.Release(landed.call, end);
  if (landed.reference_transfer != 0)
    core_->references->Abandon(landed.reference_transfer);
  if (call == nullptr) return;
  if (end.ok()) end = status;
  if (end.ok()) {
    Finish(std::move(call), std::move(landed.payload));
  } else {
    Finish(std::move(call), end);
  }
}

void Caller::OnLocalReply(uint64_t id, absl::StatusOr<Payload> result) {
  auto landed = std::make_shared<Landed>();
  landed->from = core_->options.rank;
  landed->call = id;
  std::optional<std::vector<Tensor>> out = calls_.Claim(id, landed->from);
  if (!out.has_value()) return;
  landed->out = *std::move(out);
  if (!result.ok()) return Deliver(*landed, result.status());
  landed->payload = *std::move(result);
  // A handler may answer on a thread that must not wait for a copy.
  Settle(std::move(landed));
}

void Caller::Finish(Call call, absl::StatusOr<Payload> result) {
  WorkerCounters& counters = core_->counters.Of(call->to);
  counters.calls.fetch_add(1, std::memory_order_relaxed);
  if (result.ok()) {
    counters.latency.Add(absl::FromChrono(Clock::now() - call->started));
  } else {
    counters.errors.fetch_add(1, std::memory_order_relaxed);
    absl::Status error = Annotate(result.status(), Describe(*call));
    ErrorInfo info = GetErrorInfo(error);
    if (!info.group.empty()) {
      // Of a group that the handler used, whose ranks are not those of workers.
      error = WithoutErrorInfo(std::move(error));
      info = ErrorInfo();
    }
    const ErrorInfo here{.group = {},
                         .operation = call->method,
                         .sequence = call->id,
                         .rank = info.rank.value_or(call->to),
                         .failed_rank = info.failed_rank};
    result = WithErrorInfo(std::move(error), here);
  }
  counters.outstanding.fetch_sub(1, std::memory_order_relaxed);
  call->done(std::move(result));
  call.reset();
  // Only now, since `done` may have started another call.
  if (core_->counters.outstanding().fetch_sub(1) == 1) core_->drain.OnIdle();
}

void Caller::Abandon(Call call, const absl::Status& why) {
  using Departure = OutgoingCall::Departure;
  if (call->reference_transfer != 0 &&
      core_->references->Abandon(call->reference_transfer)) {
    NotSent(*call, why);
  } else {
    // Only the thread that took the call from the table runs this.
    call->unwanted = why;
    if (call->departure.exchange(Departure::kUnwanted) == Departure::kLeft) {
      Recall(*call, why);
    }
  }
  Finish(std::move(call), why);
}

void Caller::Recall(const OutgoingCall& call, const absl::Status& why) {
  if (call.to == core_->options.rank) {
    return CancelChildren(callee_->OnCancel(call.to, call.id));
  }
  WorkerCounters& counters = core_->counters.Of(call.to);
  std::optional<WireMessage> cancel;
  size_t bytes = 0;
  // The value has to report its deadline, which the owner watches too.
  if (!call.creation.has_value() || !absl::IsDeadlineExceeded(why)) {
    cancel = WireMessage{.control = EncodeCancel(call.id), .bulk = call.bulk};
    bytes = cancel->control.size();
  }
  if (core_->outbox.Withdraw(call.to, call.id, std::move(cancel))) {
    counters.requests_sent.fetch_sub(1);
    NotSent(call, why);
  } else {
    counters.bytes_sent.fetch_add(bytes, std::memory_order_relaxed);
  }
}

void Caller::OnGone(int worker, const absl::Status& why) {
  for (Call& call : calls_.TakeIf(
           [&](const OutgoingCall& each) { return each.to == worker; }, why)) {
    Finish(std::move(call), why);
  }
}

void Caller::CancelChildren(
    const std::vector<std::shared_ptr<CallContext>>& contexts) {
  if (contexts.empty()) return;
  const absl::Status why =
      absl::CancelledError("the handler that made it was cancelled");
  for (Call& call : calls_.TakeIf(
           [&](const OutgoingCall& each) {
             return each.parent != nullptr &&
                    std::find(contexts.begin(), contexts.end(), each.parent) !=
                        contexts.end();
           },
           why)) {
    Abandon(std::move(call), why);
  }
}

Deadline Caller::Expire(Deadline::Clock::time_point now) {
  for (Call& call : calls_.TakeIf(
           [&](const OutgoingCall& each) {
             return each.deadline.when() <= now;
           },
           absl::DeadlineExceededError(
               "its deadline passed while the reply arrived"))) {
    const absl::Status why = LateError(*call);
    Abandon(std::move(call), why);
  }
  return calls_.EarliestDeadline();
}

std::string Caller::Describe(const OutgoingCall& call) const {
  return absl::StrCat("call ", call.id, " of ", call.method, " on ",
                      core_->Describe(call.to));
}

}  // namespace sherd::internal
