#include "sherd/rpc/engine/caller.h"

#include <algorithm>
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

namespace sherd::internal {
namespace {

using Clock = Deadline::Clock;

absl::Status LateError(const OutgoingCall& call) {
  // To a millisecond: the clock was read some time after the timeout began.
  const absl::Duration given =
      absl::Trunc(absl::FromChrono(call.deadline.when() - call.started) +
                      absl::Microseconds(500),
                  absl::Milliseconds(1));
  return absl::DeadlineExceededError(
      absl::StrCat("no reply within ", absl::FormatDuration(given)));
}

absl::Status ClosedError() {
  return absl::FailedPreconditionError("RPC was shut down");
}

}  // namespace

// A reply on its way from the wire to the caller.
struct Caller::Landed {
  int from = 0;
  uint64_t call = 0;
  Payload payload;
  std::vector<Tensor> out;
};

uint64_t Caller::Start(int to, absl::string_view method, uint64_t signature,
                       Payload request, const CallOptions& options,
                       ReplyFunction done) {
  auto call = std::make_unique<OutgoingCall>();
  const uint64_t id = calls_.NextId();
  call->id = id;
  call->to = to;
  call->method = std::string(method);
  call->started = Clock::now();
  call->deadline = Deadline::After(options.timeout);
  call->done = std::move(done);
  call->out = options.out;
  call->references_keep = std::move(request.references_keep);
  call->parent = CallContext::Current();
  if (call->parent != nullptr) {
    call->deadline =
        Deadline::Earlier(call->deadline, call->parent->deadline());
  }
  if (const absl::Status status = CheckStart(to, *call); !status.ok()) {
    const bool known = to >= 0 && to < core_->options.world_size;
    call->done(Annotate(
        status, known ? Describe(*call)
                      : absl::StrCat("call ", id, " of ", call->method)));
    return id;
  }
  core_->counters.outstanding().fetch_add(1);
  core_->counters.Of(to).outstanding.fetch_add(1, std::memory_order_relaxed);
  const absl::Status status =
      Launch(std::move(call), signature, std::move(request));
  if (!status.ok()) {
    if (Call failed = calls_.Take(id, status))
      Finish(std::move(failed), status);
  }
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
  if (call.parent != nullptr && call.parent->cancelled() &&
      !call.deadline.HasPassed()) {
    return absl::CancelledError("nobody waits any more for the handler of " +
                                std::string(call.parent->method()) +
                                " that makes it");
  }
  if (call.deadline.HasPassed()) {
    return absl::DeadlineExceededError(
        "its deadline had passed before it began");
  }
  return absl::OkStatus();
}

absl::Status Caller::Launch(Call call, uint64_t signature, Payload request) {
  const uint64_t id = call->id;
  const int to = call->to;
  const bool local = to == core_->options.rank;
  absl::StatusOr<PackedTensors> packed;
  absl::StatusOr<std::string> control;
  const Deadline deadline = call->deadline;
  absl::Status status;
  if (local) {
    status = AwaitQueued(request.tensors, deadline);
  } else {
    packed = core_->Pack(
        to, request,
        [&](const Device& device) {
          return core_->routes.OfArgument(to, device);
        },
        deadline);
    status = packed.status();
  }
  if (status.ok() && !local) {
    call->bulk = packed->bulk();
    control =
        EncodeRequest(id, call->method, signature, deadline.Remaining(),
                      request, packed->exposure.get(), core_->options.limits);
    status = control.status();
  }
  bool lost = false;
  if (status.ok()) {
    status = MaybeInjectFault({.point = FaultPoint::kRpcBeforeRequest,
                               .rank = core_->options.rank,
                               .subject = call->method,
                               .lost = &lost});
  }
  const std::string method = local ? call->method : std::string();
  calls_.Add(std::move(call));
  SHERD_RETURN_IF_ERROR(status);
  SHERD_RETURN_IF_ERROR(core_->deadlines.Watch(deadline));
  // After Close has searched the calls, this is true.
  if (closed_.load()) return ClosedError();
  if (lost) return absl::OkStatus();
  if (local) {
    calls_.MarkSent(id);
    callee_->AcceptLocal(id, method, signature, deadline, std::move(request));
    return absl::OkStatus();
  }
  WorkerCounters& counters = core_->counters.Of(to);
  counters.requests_sent.fetch_add(1);
  core_->IntroduceMemory(to);
  status =
      core_->Send(to, id, *std::move(control), *std::move(packed),
                  [self = weak_from_this(), to, id](const absl::Status& end) {
                    if (const auto caller = self.lock())
                      caller->OnSent(to, id, end);
                  });
  if (!status.ok()) counters.requests_sent.fetch_sub(1);
  MaybeInjectFault({.point = FaultPoint::kRpcAfterRequest,
                    .rank = core_->options.rank,
                    .subject = core_->outbox.wire()->names()[to]})
      .IgnoreError();
  return status;
}

void Caller::OnSent(int to, uint64_t id, const absl::Status& end) {
  if (end.ok()) return calls_.MarkSent(id);
  if (!EngineCore::IsUnsent(end)) return;
  core_->counters.Of(to).requests_sent.fetch_sub(1);
  if (Call call = calls_.Take(id, end)) Finish(std::move(call), end);
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
  auto landed = std::make_shared<Landed>();
  landed->from = from;
  landed->call = reply.call;
  landed->payload.references = std::move(reply.payload.references);
  absl::Status status = absl::CancelledError("the reply came late");
  if (out.has_value()) {
    landed->out = *std::move(out);
    absl::StatusOr<std::vector<Tensor>> tensors =
        TensorsToLandIn(reply.payload.tensors, landed->out,
                        /*any_strides=*/transfer != nullptr);
    status = tensors.status();
    if (tensors.ok()) {
      landed->payload.tensors = *std::move(tensors);
      landed->payload.devices =
          DevicesAfterLanding(reply.payload.tensors, landed->out);
    }
  }
  if (!status.ok()) {
    // Not wanted, or no place to put it: its bytes are dropped.
    if (out.has_value()) {
      Deliver(*landed, status);
    } else if (!landed->payload.references.empty()) {
      core_->SendSmall(from, EncodeReceived(reply.call));
    }
    return Destinations();
  }
  landed->payload.values = std::move(reply.payload.values);
  return core_->Land(
      from, std::move(transfer), tail_bytes, landed->payload.tensors, ticket,
      [self = shared_from_this(), landed](const absl::Status& end) {
        self->OnLanded(landed, end);
      });
}

void Caller::OnLanded(std::shared_ptr<Landed> landed,
                      const absl::Status& status) {
  if (!status.ok()) return Deliver(*landed, status);
  if (landed->payload.references.empty()) return Settle(std::move(landed));
  if (core_->options.admit_references == nullptr) {
    return Deliver(*landed, absl::UnimplementedError(
                                "the result has references, which this "
                                "worker does not take"));
  }
  Landed& admitted = *landed;
  core_->options.admit_references(
      admitted.from, admitted.payload,
      [self = shared_from_this(), landed](const absl::Status& confirmed) {
        if (!confirmed.ok()) return self->Deliver(*landed, confirmed);
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
  Payload& payload = landed.payload;
  SHERD_RETURN_IF_ERROR(CopyIntoOut(landed.out, payload.tensors));
  SHERD_RETURN_IF_ERROR(CopyToDevices(payload));
  // Whatever streams the caller uses. The copies cannot be taken back, so that
  // no deadline helps.
  return AwaitQueued(payload.tensors, Deadline::Infinite());
}

void Caller::Deliver(Landed& landed, const absl::Status& status) {
  absl::Status end;
  Call call = calls_.Release(landed.call, end);
  if (!landed.payload.references.empty() &&
      landed.from != core_->options.rank) {
    core_->SendSmall(landed.from, EncodeReceived(landed.call));
  }
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
    ErrorInfo info = GetErrorInfo(result.status());
    const ErrorInfo here{.group = {},
                         .operation = call->method,
                         .sequence = call->id,
                         .rank = info.rank.value_or(call->to),
                         .failed_rank = info.failed_rank};
    result = WithErrorInfo(Annotate(result.status(), Describe(*call)), here);
  }
  counters.outstanding.fetch_sub(1, std::memory_order_relaxed);
  call->done(std::move(result));
  call.reset();
  // Only now: `done` may have started another call.
  if (core_->counters.outstanding().fetch_sub(1) == 1) core_->drain.OnIdle();
}

void Caller::Abandon(Call call, const absl::Status& why) {
  if (call->to == core_->options.rank) {
    callee_->OnCancel(call->to, call->id);
  } else if (core_->outbox.Withdraw(call->to, call->id)) {
    core_->counters.Of(call->to).requests_sent.fetch_sub(1);
  } else {
    core_->SendSmall(call->to, EncodeCancel(call->id), call->bulk);
  }
  Finish(std::move(call), why);
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
  const absl::Status why = absl::CancelledError(
      "nobody waits any more for the handler that made it");
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
