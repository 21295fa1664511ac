#include "sherd/rpc/engine/call_engine.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/shared_work.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/call_statistics.h"
#include "sherd/rpc/link/wire.h"
#include "sherd/rpc/ownership/reference_service.h"

namespace sherd::internal {
namespace {

// Handles of references may outlive the engine: this pointer then expires.
std::shared_ptr<ReferenceService> MakeReferences(
    const std::shared_ptr<EngineCore>& core,
    const std::shared_ptr<Caller>& caller) {
  ReferenceService::Hooks hooks;
  hooks.send = [weak = std::weak_ptr(core)](int to, std::string control,
                                            auto unsent) {
    if (const auto alive = weak.lock()) {
      alive->SendSmall(to, std::move(control), std::move(unsent));
    }
  };
  hooks.fetch = [weak = std::weak_ptr(caller)](int to, Payload request,
                                               absl::Duration timeout,
                                               ReplyFunction done) {
    const auto alive = weak.lock();
    if (alive == nullptr) {
      return done(absl::FailedPreconditionError("RPC was shut down"));
    }
    alive->Start(to, kFetchMethod, kFetchSignature, std::move(request),
                 {.timeout = timeout}, std::move(done));
  };
  return std::make_shared<ReferenceService>(
      core->options.rank, core->options.world_size, core->options.timeout,
      std::move(hooks));
}

// A handler that waits runs work that is not of its call.
class WorkOfNoCall final : public SharedWork {
 public:
  explicit WorkOfNoCall(std::shared_ptr<SharedWork> work)
      : work_(std::move(work)) {}

  bool WorkUntil(Wait& wait, Deadline deadline) override {
    const ScopedCallContext none(nullptr);
    return work_->WorkUntil(wait, deadline);
  }
  void Wake() override { work_->Wake(); }
  bool RunsHere() const override { return work_->RunsHere(); }
  void Defer(std::function<void()> task) override {
    work_->Defer(std::move(task));
  }

 private:
  const std::shared_ptr<SharedWork> work_;
};

}  // namespace

CallEngine::CallEngine(CallEngineOptions options)
    : core_(std::make_shared<EngineCore>(
          std::move(options),
          [this](Deadline::Clock::time_point now) { return Expire(now); })),
      callee_(std::make_shared<Callee>(core_)),
      caller_(std::make_shared<Caller>(core_, callee_)) {
  callee_->SetCaller(caller_);
  core_->references = MakeReferences(core_, caller_);
}

CallEngine::~CallEngine() {
  Close(Deadline::After(absl::ZeroDuration())).IgnoreError();
}

void CallEngine::Attach(std::shared_ptr<Wire> wire) {
  core_->references->SetNames(wire->names());
  core_->outbox.Attach(std::move(wire));
  callee_->Open();
}

void CallEngine::Share(std::shared_ptr<SharedWork> work) {
  core_->work = std::make_shared<WorkOfNoCall>(std::move(work));
  core_->references->SetWork(core_->work);
  core_->pool.Share(core_->work);
}

uint64_t CallEngine::Start(int to, absl::string_view method, uint64_t signature,
                           Payload request, const CallOptions& options,
                           ReplyFunction done) {
  return caller_->Start(to, method, signature, std::move(request), options,
                        std::move(done));
}

void CallEngine::Cancel(uint64_t call) { caller_->Cancel(call); }

absl::Status CallEngine::Drain(Deadline deadline) {
  return core_->drain.Wait(deadline);
}

void CallEngine::FailAll(const absl::Status& why) {
  caller_->FailAll(why);
  // The calls that those handlers made are among the ones that have failed.
  callee_->CancelAll();
}

absl::Status CallEngine::Close(Deadline deadline) {
  const absl::Status why = absl::CancelledError("RPC was shut down");
  // Nothing arrives any more once the wire is closed.
  core_->landings.Fail(-1, why);
  for (int worker = 0; worker < core_->options.world_size; ++worker) {
    core_->memory.Forget(worker, why);
    core_->outbox.Drop(worker, why);
  }
  caller_->Close(why);
  callee_->CancelAll();
  core_->references->Close();
  core_->deadlines.Stop();
  return core_->pool.Stop(deadline);
}

std::vector<WorkerStatistics> CallEngine::Statistics() const {
  const Wire* const wire = core_->outbox.wire();
  std::vector<WorkerStatistics> all(
      static_cast<size_t>(core_->options.world_size));
  for (size_t r = 0; r < all.size(); ++r) {
    const WorkerCounters& counters = core_->counters.Of(static_cast<int>(r));
    WorkerStatistics& to = all[r];
    to.rank = static_cast<int>(r);
    if (wire != nullptr) to.name = wire->names()[r];
    to.calls = counters.calls.load(std::memory_order_relaxed);
    to.errors = counters.errors.load(std::memory_order_relaxed);
    to.outstanding = counters.outstanding.load(std::memory_order_relaxed);
    to.served = counters.requests_received.load(std::memory_order_relaxed);
    to.bytes_sent = counters.bytes_sent.load(std::memory_order_relaxed);
    to.bytes_received = counters.bytes_received.load(std::memory_order_relaxed);
    const auto read = [&](MemoryPath path) {
      return counters.bytes_read[static_cast<size_t>(path)].load(
          std::memory_order_relaxed);
    };
    to.bytes_by_thread = read(MemoryPath::kThread);
    to.bytes_by_shm = read(MemoryPath::kShm);
    to.bytes_by_cma = read(MemoryPath::kCma);
    to.p50 = counters.latency.Quantile(0.5);
    to.p99 = counters.latency.Quantile(0.99);
  }
  return all;
}

std::vector<CallUnderWay> CallEngine::CallsUnderWay() const {
  std::vector<CallUnderWay> calls = caller_->UnderWay();
  for (CallUnderWay& call : callee_->UnderWay()) {
    calls.push_back(std::move(call));
  }
  return calls;
}

absl::StatusOr<std::vector<absl::Span<std::byte>>> CallEngine::OnControl(
    int from, absl::string_view control, uint64_t tail_bytes,
    uint64_t* ticket) {
  using Destinations = std::vector<absl::Span<std::byte>>;
  *ticket = 0;
  core_->counters.Of(from).bytes_received.fetch_add(control.size() + tail_bytes,
                                                    std::memory_order_relaxed);
  SHERD_ASSIGN_OR_RETURN(
      CallHeader header,
      DecodeCallMessage(control, tail_bytes, core_->options.limits));
  if (auto* const request = std::get_if<RequestHeader>(&header)) {
    return callee_->OnRequest(from, std::move(*request), tail_bytes, ticket);
  }
  if (auto* const reply = std::get_if<ReplyHeader>(&header)) {
    return caller_->OnReply(from, std::move(*reply), tail_bytes, ticket);
  }
  if (const auto* const cancel = std::get_if<CancelHeader>(&header)) {
    caller_->CancelChildren(callee_->OnCancel(from, cancel->call));
    return Destinations();
  }
  if (const auto* const drain = std::get_if<DrainHeader>(&header)) {
    core_->drain.OnMessage(from, *drain);
    return Destinations();
  }
  if (const auto* const read = std::get_if<TransferReadHeader>(&header)) {
    core_->outbox.OnRead(from, read->transfer);
    return Destinations();
  }
  if (const auto* const probe = std::get_if<MemoryProbe>(&header)) {
    SHERD_RETURN_IF_ERROR(core_->OnMemoryProbe(from, *probe));
    return Destinations();
  }
  if (const auto* const paths = std::get_if<MemoryPathSet>(&header)) {
    core_->memory.SetReadable(from, *paths);
    return Destinations();
  }
  SHERD_RETURN_IF_ERROR(
      core_->references->OnMessages(from, std::get<ReferenceMessages>(header)));
  return Destinations();
}

void CallEngine::OnTail(int from, uint64_t ticket) {
  core_->landings.Land(from, ticket);
}

void CallEngine::OnLost(int worker, const absl::Status& why) {
  OnGone(worker, WithFailedRank(why, worker));
  core_->drain.OnGone(worker, why.message());
}

void CallEngine::OnLeft(int worker, const absl::Status& why) {
  OnGone(worker, WithRank(why, worker));
  core_->drain.OnGone(worker, "");
}

void CallEngine::OnGone(int worker, const absl::Status& why) {
  // First: from then on it may read memory that was reused.
  core_->memory.Forget(worker, why);
  core_->outbox.Drop(worker, why);
  core_->landings.Fail(worker, why);
  // Before the calls: code that a failed call runs finds references dead.
  core_->references->WorkerLost(worker, why);
  caller_->CancelChildren(callee_->OnGone(worker));
  caller_->OnGone(worker, why);
}

Deadline CallEngine::Expire(Deadline::Clock::time_point now) {
  // Their children have no later deadlines.
  callee_->Expire(now);
  return Deadline::Earlier(caller_->Expire(now), callee_->EarliestDeadline());
}

}  // namespace sherd::internal
