#include "sherd/rpc/engine/callee.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
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
#include "sherd/rpc/call/payload.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/devices/device_staging.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/caller.h"
#include "sherd/rpc/engine/engine_core.h"
#include "sherd/rpc/engine/incoming_calls.h"
#include "sherd/rpc/engine/landings.h"

namespace sherd::internal {

// Answers a call once: with what it is given first, or if nobody has it any
// more, with an error.
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
    // Not running any more once it is answered, however long the function
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
  absl::Status status = FindHandler(request.method, request.signature, *call);
  if (status.ok()) status = MakeRoom(request, *call);
  // From Add on, the payload is the table's; the memory is that of these
  // handles, also if the call ends meanwhile.
  std::vector<Tensor> landing = call->payload.tensors;
  if (!calls_.Add(call)) {
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
        // Nobody hears it if the caller is lost.
        self->Reply(call, end);
      });
}

void Callee::AcceptLocal(uint64_t id, const std::string& method,
                         uint64_t signature, Deadline deadline,
                         Payload payload) {
  auto call = std::make_shared<IncomingCall>();
  call->from = core_->options.rank;
  call->id = id;
  call->context =
      std::make_shared<CallContext>(call->from, id, method, deadline);
  call->running = MarkRunning(0);
  call->payload = std::move(payload);
  const absl::Status status = FindHandler(method, signature, *call);
  calls_.Add(call);
  if (status.ok()) {
    Enqueue(std::move(call));
  } else {
    Reply(call, status);
  }
}

absl::Status Callee::FindHandler(absl::string_view method, uint64_t signature,
                                 IncomingCall& call) const {
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
  call.has_references = !call.payload.references.empty();
  return absl::OkStatus();
}

void Callee::Admit(Call call) {
  if (!call->has_references) return Enqueue(std::move(call));
  if (core_->options.admit_references == nullptr) {
    return Reply(call, absl::UnimplementedError(
                           "its arguments have references, which that worker "
                           "does not take"));
  }
  // The payload leaves the table meanwhile, so that nobody else touches it.
  std::optional<Payload> payload = calls_.Begin(*call);
  if (!payload.has_value()) return;
  auto admitted = std::make_shared<Payload>(*std::move(payload));
  Payload& to_admit = *admitted;
  const int from = call->from;
  core_->options.admit_references(
      from, to_admit,
      [self = shared_from_this(), call = std::move(call),
       admitted](const absl::Status& confirmed) {
        if (!confirmed.ok()) return self->Reply(call, confirmed);
        if (self->calls_.PutBack(*call, std::move(*admitted))) {
          self->Enqueue(call);
        }
      });
}

void Callee::Enqueue(Call call) {
  call->state.store("waiting", std::memory_order_relaxed);
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
  // It was removed before: nobody waits for an answer.
  if (calls_.Remove(call->from, call->id) == nullptr) return;
  bool lost = false;
  if (absl::Status status = InjectAt(FaultPoint::kRpcBeforeReply, *call, &lost);
      !status.ok()) {
    result = std::move(status);
  }
  if (lost) return;
  if (!result.ok() || !AnyOnDevice(result->tensors)) {
    return Deliver(*call, std::move(result));
  }
  absl::StatusOr<QueuedWork> queued = QueuedWork::For(result->tensors);
  if (!queued.ok()) return Deliver(*call, queued.status());
  // Not on this thread, which may be one that must not wait.
  core_->pool.Submit(
      [self = shared_from_this(), call, result = std::move(result),
       queued = std::make_shared<QueuedWork>(*std::move(queued))](
          absl::Status status) mutable {
        status.Update(queued->Await(call->context->deadline()));
        if (status.ok()) return self->Deliver(*call, std::move(result));
        self->Deliver(*call, std::move(status));
      });
}

void Callee::Deliver(const IncomingCall& call, absl::StatusOr<Payload> result) {
  if (call.from == core_->options.rank) {
    if (const auto caller = caller_.lock()) {
      caller->OnLocalReply(call.id, std::move(result));
    }
    return;
  }
  if (result.ok()) {
    SendReply(call, *std::move(result));
  } else {
    core_->SendSmall(call.from, EncodeErrorReply(call.id, result.status()));
  }
  InjectAt(FaultPoint::kRpcAfterReply, call).IgnoreError();
}

absl::Status Callee::InjectAt(FaultPoint point, const IncomingCall& call,
                              bool* lost) const {
  return MaybeInjectFault({.point = point,
                           .rank = core_->options.rank,
                           .subject = call.context->method(),
                           .lost = lost});
}

void Callee::SendReply(const IncomingCall& call, Payload result) {
  const int to = call.from;
  const uint64_t id = call.id;
  absl::StatusOr<PackedTensors> packed = core_->Pack(
      to, result,
      [&](const Device& device) { return core_->routes.OfResult(to, device); },
      call.context->deadline());
  absl::StatusOr<std::string> control;
  absl::Status status = packed.status();
  if (status.ok()) {
    control =
        EncodeReply(id, result, packed->exposure.get(), core_->options.limits);
    status = control.status();
  }
  if (!status.ok()) {
    return core_->SendSmall(to, EncodeErrorReply(id, status));
  }
  if (!result.references.empty()) {
    calls_.KeepReferences(to, id, std::move(result.references_keep));
  }
  // Others go out on the connection on which the call came.
  std::function<void(const absl::Status&)> on_sent;
  if (packed->bulk()) {
    on_sent = [self = weak_from_this(), to, id](const absl::Status& end) {
      const auto callee = EngineCore::IsUnsent(end) ? self.lock() : nullptr;
      if (callee == nullptr) return;
      callee->calls_.ReleaseReferences(to, id);
      callee->core_->SendSmall(
          to, EncodeErrorReply(id, Annotate(end, "its reply was not sent")));
    };
  }
  status = core_->Send(to, 0, *std::move(control), *std::move(packed),
                       std::move(on_sent));
  // The caller is lost, or this worker has said goodbye.
  if (!status.ok()) calls_.ReleaseReferences(to, id);
}

Callee::Contexts Callee::OnCancel(int from, uint64_t id) {
  if (auto context = calls_.Cancel(from, id)) return {std::move(context)};
  return {};
}

Callee::Contexts Callee::OnGone(int worker) {
  Contexts contexts = calls_.CancelIf(
      [&](const IncomingCall& call) { return call.from == worker; });
  calls_.ReleaseAllReferences(worker);
  return contexts;
}

Callee::Contexts Callee::CancelAll() {
  return calls_.CancelIf([](const IncomingCall&) { return true; });
}

Callee::Contexts Callee::Expire(Deadline::Clock::time_point now) {
  return calls_.CancelIf([&](const IncomingCall& call) {
    return call.context->deadline().when() <= now;
  });
}

}  // namespace sherd::internal
