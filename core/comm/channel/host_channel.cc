#include "sherd/core/comm/channel/host_channel.h"

#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/polling_pause.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/own_block.h"

namespace sherd::internal {
namespace {

void Copy(const BlockCopy& copy) {
  if (copy.IsNeeded()) {
    std::memcpy(copy.to.data(), copy.from.data(), copy.from.size());
  }
}

}  // namespace

std::unique_ptr<CollectiveQueue>& MessageQueues::At(const Collective& message) {
  return queues_[2 * message.root +
                 (message.op == CollectiveOp::kRecv ? 1 : 0)];
}

CollectiveQueue& MessageQueues::For(const Collective& message) {
  absl::MutexLock lock(&mutex_);
  std::unique_ptr<CollectiveQueue>& queue = At(message);
  if (queue == nullptr) queue = std::make_unique<CollectiveQueue>();
  return *queue;
}

void MessageQueues::WaitIdle(const Collective& message) {
  CollectiveQueue* queue;
  {
    absl::MutexLock lock(&mutex_);
    queue = At(message).get();
  }
  if (queue != nullptr) queue->WaitIdle();
}

void MessageQueues::WaitAllIdle() {
  std::vector<CollectiveQueue*> queues;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& queue : queues_) {
      if (queue != nullptr) queues.push_back(queue.get());
    }
  }
  for (CollectiveQueue* const queue : queues) queue->WaitIdle();
}

HostChannel::HostChannel(const BackendInfo& backend, CallSupervisor& calls,
                         CollectiveQueue& queue)
    : Channel(backend, calls),
      queue_(queue),
      messages_(calls.membership().size()) {}

absl::Status HostChannel::Connect(const Backend& backend,
                                  const CommunicatorOptions& options) {
  emulation_ = std::make_unique<Emulation>(this->backend().native, options.rank,
                                           options.size);
  SHERD_RETURN_IF_ERROR(membership().MaybeInjectFault(
      FaultPoint::kBeforeConnecting, membership().name()));
  SHERD_ASSIGN_OR_RETURN(communicator_, backend.CreateCommunicator(options));
  {
    absl::MutexLock lock(&connection_mutex_);
    peer_memory_ = communicator_->peer_memory();
  }
  return membership().MaybeInjectFault(FaultPoint::kAfterConnecting,
                                       membership().name());
}

std::shared_ptr<PeerMemory> HostChannel::peer_memory() const {
  absl::MutexLock lock(&connection_mutex_);
  return peer_memory_;
}

absl::Status HostChannel::Run(Collective& call) {
  if (IsPointToPoint(call.op)) {
    messages_.WaitIdle(call);
  } else {
    queue_.WaitIdle();
  }
  const FlightTicket ticket =
      calls().Begin(call, PathOf(call), /*started=*/true);
  return calls().End(ticket, Execute(call));
}

Work HostChannel::Start(const Collective& started) {
  Collective call = started;
  CollectiveQueue& queue =
      IsPointToPoint(call.op) ? messages_.For(call) : queue_;
  const FlightTicket ticket =
      calls().Begin(call, PathOf(call), /*started=*/false);
  return Work(queue.Push([this, call, ticket]() mutable {
    calls().MarkStarted(ticket);
    return calls().End(ticket, Execute(call));
  }));
}

absl::Status HostChannel::Execute(Collective& call) {
  const auto run = [&](auto execute) {
    if (!calls().peers().usable()) return calls().Refusal(call);
    absl::Status status = execute();
    if (status.ok()) {
      status = calls().MaybeInjectFault(FaultPoint::kAfterCompletion, call);
    }
    return status.ok() ? status : calls().Fail(call, std::move(status));
  };
  if (IsPointToPoint(call.op)) {
    absl::ReaderMutexLock lock(&open_mutex_);
    return run([&] { return ExecuteMessage(call); });
  }
  absl::MutexLock lock(&collective_mutex_);
  return run([&] {
    collective_mutex_.AssertHeld();
    return ExecuteCollective(call);
  });
}

absl::Status HostChannel::ExecuteMessage(const Collective& call) {
  const absl::Status status = PostAndWait(call);
  if (!absl::IsInvalidArgument(status)) return status;
  // If two ranks disagree about a length, neither is known to be right, and the
  // text must make sense on every rank of the group.
  return absl::InvalidArgumentError(absl::StrReplaceAll(
      status.message(),
      {{"this rank", absl::StrCat("rank ", membership().rank())}}));
}

absl::Status HostChannel::ExecuteCollective(Collective& call) {
  even_blocks_.List(membership(), call);
  const auto post = [this](Collective part) {
    collective_mutex_.AssertHeld();
    part.sequence = ++posted_;
    return PostAndWait(part);
  };
  SHERD_RETURN_IF_ERROR(
      calls().Compare(call, [&](absl::Span<const ConstBytes> sends,
                                absl::Span<const MutableBytes> recvs) {
        return post({.op = CollectiveOp::kAllToAllV,
                     .sends = sends,
                     .recvs = recvs,
                     .deadline = call.deadline});
      }));
  if (HasOwnBlock(call.op)) Copy(OwnBlock(call, membership().rank()));
  if (membership().size() == 1) {
    Copy(LoneReduction(call));
    return absl::OkStatus();
  }
  const auto launch = [&](const Collective& part) {
    return PathOf(part) == OperationPath::kNative ? post(part)
                                                  : emulation_->Run(part, post);
  };
  // A vendor's library may return at once from a call without bytes, whatever
  // the other ranks call.
  if (MovesNothing(call) && !backend().compares_calls) {
    return launch(InPlaceOfNothing(call));
  }
  return launch(call);
}

absl::Status HostChannel::PostAndWait(const Collective& call) {
  SHERD_RETURN_IF_ERROR(
      calls().MaybeInjectFault(FaultPoint::kBeforePost, call));
  CollectiveRequest request;
  SHERD_ASSIGN_OR_RETURN(bool done, communicator_->Post(call, request));
  SHERD_RETURN_IF_ERROR(calls().MaybeInjectFault(FaultPoint::kAfterPost, call));
  const CallComparison* const comparison = calls().comparison();
  // The backend progresses only while it is polled.
  for (PollingPause pause(20000, absl::Microseconds(50)); !done; pause()) {
    SHERD_ASSIGN_OR_RETURN(done, communicator_->Test(request));
    if (done) break;
    if (call.deadline.HasPassed()) {
      return absl::DeadlineExceededError("it did not end in time");
    }
    if (!calls().peers().usable()) {
      return absl::AbortedError("the group was aborted");
    }
    if (comparison == nullptr) continue;
    if (const std::optional<int> failed = comparison->FailedRank()) {
      return WithFailedRank(absl::UnavailableError("gave up"), *failed);
    }
  }
  return absl::OkStatus();
}

void HostChannel::WaitIdle() {
  queue_.WaitIdle();
  messages_.WaitAllIdle();
}

void HostChannel::Abort() {
  absl::MutexLock lock(&connection_mutex_);
  if (communicator_ != nullptr) communicator_->Abort();
}

void HostChannel::Close() {
  absl::MutexLock collective(&collective_mutex_);
  absl::WriterMutexLock open(&open_mutex_);
  // Written before the connections close, so that a rank which still needs this
  // one can report the reason.
  calls().peers().ReportLeaving();
  absl::MutexLock lock(&connection_mutex_);
  peer_memory_.reset();
  communicator_.reset();
}

}  // namespace sherd::internal
