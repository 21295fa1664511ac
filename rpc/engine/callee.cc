#include "sherd/rpc/engine/callee.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/call_context_control.h"
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/devices/device_staging.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/caller.h"
#include "sherd/rpc/engine/engine_core.h"
#include "sherd/rpc/engine/incoming_calls.h"
#include "sherd/rpc/engine/landings.h"
#include "sherd/rpc/link/wire.h"

namespace sherd::internal {
namespace {

// The reply of a handler that took longer does not wait for another.
constexpr auto kShortHandler = std::chrono::microseconds(100);

}  // namespace

absl::Status AsCallersSee(const absl::Status& status) {
  if (!absl::IsFailedPrecondition(status)) return status;
  return absl::UnavailableError(status.message());
}

// Answers a call once: with the first result, or with an error when the last
// handle is destroyed.
class Callee::ReplyOnce {
 public:
  ReplyOnce(std::weak_ptr<Callee> callee, Call call)
      : callee_(std::move(callee)), call_(std::move(call)) {}
  ReplyOnce(const ReplyOnce&) = delete;
  ReplyOnce& operator=(const ReplyOnce&) = delete;
  ~ReplyOnce() {
    Send(absl::InternalError(
        "its handler ended without a reply: the last copy of the function that "
        "takes it was destroyed"));
  }

  void Send(absl::StatusOr<Payload> result) {
    if (sent_.exchange(true)) return;
    // Once answered the call no longer runs, however long the function
    // lives.
    const Call call = std::move(call_);
    if (const auto callee = callee_.lock()) {
      callee->Reply(call, std::move(result));
    }
  }

 private:
  const std::weak_ptr<Callee> callee_;
  Call call_;
  std::atomic<bool> sent_{false};
};

absl::StatusOr<Callee::Destinations> Callee::OnRequest(int from,
                                                       RequestHeader request,
                                                       uint64_t tail_bytes,
                                                       uint64_t* ticket) {
  std::shared_ptr<Transfer> transfer;
  if (request.payload.transfer != 0) {
    transfer = std::make_shared<Transfer>(core_, from, request.payload);
  }
  auto call = std::make_shared<IncomingCall>();
  call->from = from;
  call->id = request.call;
  const Deadline deadline = Deadline::After(request.timeout);
  call->context = std::make_shared<CallContext>(from, request.call,
                                                request.method, deadline);
  // First the activity, then the count: see CallCounters::Look.
  call->running = MarkRunning(request.payload.tensor_bytes);
  core_->counters.Of(from).requests_received.fetch_add(1);
  absl::Status status = AsCallersSee(TakeReferences(request, *call));
  if (absl::IsInvalidArgument(status)) return status;
  if (status.ok()) {
    status = FindHandler(request.method, request.signature, *call);
  }
  if (status.ok()) status = MakeRoom(request, *call);
  // From Add on, the table owns the payload; these handles own the memory,
  // even if the call ends meanwhile.
  std::vector<Tensor> landing = call->payload.tensors;
  if (!calls_.Add(call)) {
    core_->references->Abandon(call->reference_transfer);
    return absl::InvalidArgumentError(
        absl::StrCat("call message: ", core_->Describe(from), " began call ",
                     request.call, " again, which has not ended"));
  }
  if (status.ok()) status = core_->deadlines.Watch(deadline);
  if (!status.ok()) {
    Reply(call, status);
    return Destinations();
  }
  return core_->Land(
      from, std::move(transfer), tail_bytes, std::move(landing), ticket,
      [self = shared_from_this(), call](const absl::Status& end) {
        if (end.ok()) return self->Admit(call);
        // Not sent if the caller is lost.
        self->Reply(call, end);
      });
}

void Callee::AcceptLocal(const RequestHeader& request, Deadline deadline,
                         Payload payload) {
  auto call = std::make_shared<IncomingCall>();
  const int self = core_->options.rank;
  call->from = self;
  call->id = request.call;
  call->context = std::make_shared<CallContext>(self, request.call,
                                                request.method, deadline);
  call->running = MarkRunning(0);
  if (request.creation_number != 0) {
    call->value = core_->references->ValueOf(
        {.owner = self, .creator = self, .number = request.creation_number});
  }
  call->payload = std::move(payload);
  const absl::Status status =
      FindHandler(request.method, request.signature, *call);
  calls_.Add(call);
  if (status.ok()) {
    Enqueue(std::move(call));
  } else {
    Reply(call, status);
  }
}

absl::Status Callee::TakeReferences(const RequestHeader& request,
                                    IncomingCall& call) {
  ReferenceService& references = *core_->references;
  const PayloadHeader& payload = request.payload;
  absl::Status status;
  if (request.creation_number != 0) {
    absl::StatusOr<ReferenceService::Value> value = references.OnCreation(
        call.from, {ReferenceMessage::Kind::kCreate,
                    {core_->options.rank, call.from, request.creation_number},
                    request.creation_sequence});
    status = value.status();
    if (value.ok()) call.value = *std::move(value);
  }
  if (payload.references.empty()) return status;
  if (!status.ok()) {
    references.Decline(call.from, payload.reference_transfer);
    return status;
  }
  SHERD_ASSIGN_OR_RETURN(
      call.reference_transfer,
      references.Receive(call.from, payload.reference_transfer,
                         payload.references));
  return absl::OkStatus();
}

absl::Status Callee::FindHandler(absl::string_view method, uint64_t signature,
                                 IncomingCall& call) const {
  if (method == kFetchMethod && signature == kFetchSignature) {
    call.handler = FetchValueHandler();
    return absl::OkStatus();
  }
  const Wire* const wire = core_->outbox.wire();
  SHERD_ASSIGN_OR_RETURN(
      call.handler,
      core_->options.find_handler(
          method, signature,
          wire == nullptr
              ? absl::string_view("that worker")
              : wire->names()[static_cast<size_t>(core_->options.rank)]));
  return absl::OkStatus();
}

std::shared_ptr<void> Callee::MarkRunning(uint64_t bytes) {
  core_->counters.running().fetch_add(1);
  core_->counters.held_bytes().fetch_add(bytes, std::memory_order_relaxed);
  return std::shared_ptr<void>(
      core_.get(), [core = core_, bytes](void* /*unused*/) {
        core->counters.held_bytes().fetch_sub(bytes, std::memory_order_relaxed);
        if (core->counters.running().fetch_sub(1) == 1) core->drain.OnIdle();
      });
}

absl::Status Callee::MakeRoom(RequestHeader& request,
                              IncomingCall& call) const {
  const uint64_t held = core_->counters.held_bytes().load();
  if (!request.payload.tensors.empty() &&
      held > core_->options.max_held_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the tensors of the calls that it works on would have ",
                     held, " bytes with this one's; its maximum is ",
                     core_->options.max_held_bytes));
  }
  SHERD_ASSIGN_OR_RETURN(call.payload.tensors,
                         TensorsToLandIn(request.payload.tensors, {},
                                         /*any_strides=*/false));
  call.payload.devices = DevicesAfterLanding(request.payload.tensors, {});
  call.payload.values = std::move(request.payload.values);
  call.payload.references = std::move(request.payload.references);
  return absl::OkStatus();
}

void Callee::Admit(Call call) {
  if (call->reference_transfer == 0) return Enqueue(std::move(call));
  core_->references->WhenReady(call->reference_transfer,
                               [self = shared_from_this(), call](
                                   const absl::Status& status,
                                   std::vector<std::shared_ptr<void>> handles) {
                                 if (!status.ok())
                                   return self->Reply(call,
                                                      AsCallersSee(status));
                                 if (self->calls_.Admit(*call, handles))
                                   self->Enqueue(call);
                               });
}

void Callee::Open() {
  std::vector<Call> early;
  {
    absl::MutexLock lock(&mutex_);
    open_ = true;
    early.swap(early_);
  }
  for (Call& call : early) Enqueue(std::move(call));
}

void Callee::Enqueue(Call call) {
  call->state.store("waiting", std::memory_order_relaxed);
  if (!open_.load(std::memory_order_acquire)) {
    absl::MutexLock lock(&mutex_);
    if (!open_) return early_.push_back(std::move(call));
  }
  core_->pool.Submit([self = shared_from_this(),
                      call = std::move(call)](const absl::Status& status) {
    if (status.ok()) {
      self->Run(call);
    } else {
      self->Reply(call, status);
    }
  });
}

void Callee::Run(const Call& call) {
  std::optional<Payload> payload = calls_.Begin(*call);
  if (!payload.has_value()) return;
  call->state.store("running", std::memory_order_relaxed);
  call->begun = Deadline::Clock::now();
  if (const absl::Status status = CopyToDevices(*payload); !status.ok()) {
    return Reply(call, status);
  }
  const ScopedCallContext context(call->context);
  const auto reply = std::make_shared<ReplyOnce>(weak_from_this(), call);
  if (absl::Status status = InjectAt(FaultPoint::kRpcBeforeHandler, *call);
      !status.ok()) {
    return reply->Send(std::move(status));
  }
  try {
    call->handler->run(*std::move(payload),
                       [reply](absl::StatusOr<Payload> result) {
                         reply->Send(std::move(result));
                       });
  } catch (const std::exception& exception) {
    reply->Send(absl::InternalError(
        absl::StrCat("its handler threw: ", exception.what())));
  } catch (...) {
    reply->Send(absl::InternalError("its handler threw"));
  }
}

void Callee::Reply(const Call& call, absl::StatusOr<Payload> result) {
  // If it was taken before, no reply is needed.
  if (calls_.Take(call->from, call->id) == nullptr) return;
  CallContextControl::MarkAnswered(*call->context);
  if (call->reference_transfer != 0) {
    core_->references->Abandon(call->reference_transfer);
  }
  if (!result.ok() || !AnyOnDevice(result->tensors)) {
    return Deliver(call, std::move(result));
  }
  absl::StatusOr<QueuedWork> queued = QueuedWork::For(result->tensors);
  if (!queued.ok()) return Deliver(call, queued.status());
  // Not on this thread, which may have to keep from waiting.
  core_->pool.Submit(
      [self = shared_from_this(), call, result = std::move(result),
       queued = std::make_shared<QueuedWork>(*std::move(queued))](
          absl::Status status) mutable {
        // A refused task runs on a thread that must not wait.
        if (status.ok()) status = queued->Await(call->context->deadline());
        if (status.ok()) return self->Deliver(call, std::move(result));
        self->Deliver(call, std::move(status));
      });
}

void Callee::Deliver(const Call& call, absl::StatusOr<Payload> result) {
  bool lost = false;
  if (absl::Status status = InjectAt(FaultPoint::kRpcBeforeReply, *call, &lost);
      !status.ok()) {
    result = std::move(status);
  }
  if (call->value.has_value()) {
    call->value->Set(std::exchange(result, Payload()));
  }
  if (lost) return;
  if (call->from == core_->options.rank) {
    if (const auto caller = caller_.lock()) {
      caller->OnLocalReply(call->id, std::move(result));
    }
    return;
  }
  if (result.ok()) {
    SendReply(call, *std::move(result));
  } else {
    core_->SendSmall(call->from, EncodeErrorReply(call->id, result.status()));
  }
  InjectAt(FaultPoint::kRpcAfterReply, *call).IgnoreError();
}

absl::Status Callee::InjectAt(FaultPoint point, const IncomingCall& call,
                              bool* lost) const {
  return MaybeInjectFault({.point = point,
                           .rank = core_->options.rank,
                           .subject = call.context->method(),
                           .lost = lost});
}

void Callee::SendReply(const Call& call, Payload result) {
  const int to = call->from;
  absl::StatusOr<PackedTensors> packed = core_->Pack(
      to, result,
      [&](const Device& device) { return core_->routes.OfResult(to, device); },
      call->context->deadline());
  absl::Status status = packed.status();
  if (!status.ok()) packed = PackedTensors();
  uint64_t transfer = 0;
  if (status.ok() && !result.references.empty()) {
    const auto passed = core_->references->Pass(to, result);
    status = passed.status();
    if (passed.ok()) transfer = *passed;
  }
  if (transfer == 0) {
    return WriteReply(*call, std::move(result), *std::move(packed), 0, status);
  }
  core_->references->WhenReady(
      transfer,
      [self = shared_from_this(), call, transfer, result = std::move(result),
       packed = *std::move(packed)](const absl::Status& ready,
                                    const auto& /*handles*/) mutable {
        self->WriteReply(*call, std::move(result), std::move(packed), transfer,
                         ready);
      });
}

void Callee::WriteReply(const IncomingCall& call, Payload result,
                        PackedTensors packed, uint64_t transfer,
                        absl::Status status) {
  const int to = call.from;
  const uint64_t id = call.id;
  absl::StatusOr<std::string> control;
  if (status.ok()) {
    control = EncodeReply(id, result, transfer, packed.exposure.get(),
                          core_->options.limits);
    status = control.status();
  }
  if (status.ok()) {
    // The connection on which the call arrived exists for the other messages.
    std::function<void(const absl::Status&)> on_sent;
    if (packed.bulk()) {
      on_sent = [self = weak_from_this(), to, id,
                 transfer](const absl::Status& end) {
        const auto callee = WireMessage::IsUnsent(end) ? self.lock() : nullptr;
        if (callee == nullptr) return;
        if (transfer != 0) callee->core_->references->Unsent(transfer);
        callee->core_->SendSmall(
            to, EncodeErrorReply(id, Annotate(end, "its reply was not sent")));
      };
    }
    // Another reply follows closely, if handlers take no longer than this one.
    const bool may_wait = core_->pool.HasQueued() &&
                          Deadline::Clock::now() - call.begun < kShortHandler;
    status = core_->Send(to, 0, *std::move(control), std::move(packed),
                         std::move(on_sent), may_wait);
  } else {
    core_->SendSmall(to, EncodeErrorReply(id, status));
  }
  // The caller is lost, or this worker has said goodbye.
  if (!status.ok() && transfer != 0) core_->references->Unsent(transfer);
}

Callee::Contexts Callee::Cancel(const std::vector<Call>& calls,
                                const absl::Status& why) {
  Contexts contexts;
  for (const Call& call : calls) {
    CallContextControl::Cancel(*call->context);
    contexts.push_back(call->context);
    // The pool may hold the call longer, but not its payload.
    call->payload = {};
    if (call->reference_transfer != 0) {
      core_->references->Abandon(call->reference_transfer);
    }
    if (call->value.has_value()) {
      call->value->Set(
          Annotate(why, absl::StrCat(call->context->method(), " on ",
                                     core_->Describe(core_->options.rank))));
    }
  }
  return contexts;
}

Callee::Contexts Callee::OnCancel(int from, uint64_t id) {
  const Call call = calls_.Take(from, id);
  if (call == nullptr) return {};
  return Cancel({call}, absl::CancelledError("the worker that created it no "
                                             "longer waits"));
}

Callee::Contexts Callee::OnGone(int worker) {
  return Cancel(calls_.TakeIf([&](const IncomingCall& call) {
    return call.from == worker && !call.value.has_value();
  }),
                absl::CancelledError("its caller was lost or left"));
}

Callee::Contexts Callee::CancelAll() {
  return Cancel(calls_.TakeIf([](const IncomingCall&) { return true; }),
                absl::CancelledError("RPC was shut down"));
}

Callee::Contexts Callee::Expire(Deadline::Clock::time_point now) {
  return Cancel(
      calls_.TakeIf([&](const IncomingCall& call) {
        return call.context->deadline().when() <= now;
      }),
      absl::DeadlineExceededError("it did not return before its deadline"));
}

}  // namespace sherd::internal
