#include "sherd/core/comm/process_group.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/collective_queue.h"
#include "sherd/core/comm/channel/device_group.h"
#include "sherd/core/comm/collective/call_comparison.h"
#include "sherd/core/comm/collective/collective_call.h"
#include "sherd/core/comm/collective/emulation.h"
#include "sherd/core/comm/flight/flight_dump.h"
#include "sherd/core/comm/group/failure_board.h"

namespace sherd {
namespace {

using internal::CollectiveCall;
using internal::CollectiveQueue;
using internal::Emulation;
using internal::FailureBoard;
using internal::FlightReason;
using internal::FlightTicket;
using internal::Place;

// Waiting for a backend that the caller has to drive: yields while the answer
// is likely near, then sleeps, so that ranks which outnumber the cores do not
// take them from each other.
class Pause {
 public:
  void operator()() {
    if (++rounds_ <= kYields) {
      sched_yield();
    } else {
      absl::SleepFor(absl::Microseconds(50));
    }
  }

 private:
  static constexpr int kYields = 20000;
  int rounds_ = 0;
};

void CopyOwn(ConstBytes from, MutableBytes to) {
  if (from.data() != to.data() && !from.empty()) {
    std::memcpy(to.data(), from.data(), from.size());
  }
}

ConstBytes In(const Collective& desc) {
  return {static_cast<const std::byte*>(desc.in), desc.bytes};
}

MutableBytes Out(const Collective& desc) {
  return {static_cast<std::byte*>(desc.out), desc.bytes};
}

// What of an operation's result is this rank's own contribution.
void CopyOwnBlock(const Collective& desc, int rank, int size) {
  switch (desc.op) {
    case CollectiveOp::kAllGather:
      return CopyOwn(
          In(desc),
          {static_cast<std::byte*>(desc.out) + rank * desc.bytes, desc.bytes});
    case CollectiveOp::kAllToAllV:
      return CopyOwn(desc.sends[rank], desc.recvs[rank]);
    case CollectiveOp::kAllGatherV:
      return CopyOwn(In(desc), desc.recvs[rank]);
    case CollectiveOp::kGather:
      if (desc.root == rank) CopyOwn(In(desc), desc.recvs[rank]);
      return;
    case CollectiveOp::kScatter:
      if (desc.root == rank) CopyOwn(desc.sends[rank], Out(desc));
      return;
    case CollectiveOp::kAllReduce:
    case CollectiveOp::kReduce:
      if (size == 1) CopyOwn(In(desc), Out(desc));
      return;
    case CollectiveOp::kReduceScatter:
      if (size == 1) CopyOwn(desc.sends[rank], Out(desc));
      return;
    default:
      return;
  }
}

}  // namespace

absl::Status ProcessGroup::Pass(FaultPoint point,
                                absl::string_view subject) const {
  const int world_rank = is_member() ? options_.world_ranks[rank()] : -1;
  return PassFaultPoint(
      {.point = point, .rank = world_rank, .subject = subject});
}

absl::Status ProcessGroup::Pass(FaultPoint point,
                                const Collective& desc) const {
  return FaultPointsAreArmed() ? Pass(point, Name(desc.op)) : absl::OkStatus();
}

std::shared_ptr<PeerMemory> ProcessGroup::peer_memory() const {
  absl::MutexLock lock(&state_mutex_);
  return peer_memory_;
}

Allocator& ProcessGroup::shard_allocator() const {
  if (peer_memory() == nullptr) return HeapAllocator();
  Allocator* const allocator = backend_.peer_memory_allocator();
  return allocator == nullptr ? HeapAllocator() : *allocator;
}

absl::Status ProcessGroup::Barrier(const CollectiveOptions& options) {
  return Run(internal::BarrierCall(), options);
}

Work ProcessGroup::BarrierAsync(const CollectiveOptions& options) {
  return Start(internal::BarrierCall(), options);
}

absl::Status ProcessGroup::Broadcast(MutableBytes buffer, int root,
                                     const CollectiveOptions& options) {
  return Run(internal::BroadcastCall(place(), buffer, root), options);
}

Work ProcessGroup::BroadcastAsync(MutableBytes buffer, int root,
                                  const CollectiveOptions& options) {
  return Start(internal::BroadcastCall(place(), buffer, root), options);
}

absl::Status ProcessGroup::AllReduce(ConstBytes send, MutableBytes recv,
                                     DType dtype, ReduceOp op,
                                     const CollectiveOptions& options) {
  return Run(internal::AllReduceCall({dtype, op}, send, recv), options);
}

Work ProcessGroup::AllReduceAsync(ConstBytes send, MutableBytes recv,
                                  DType dtype, ReduceOp op,
                                  const CollectiveOptions& options) {
  return Start(internal::AllReduceCall({dtype, op}, send, recv), options);
}

absl::Status ProcessGroup::Reduce(ConstBytes send, MutableBytes recv,
                                  DType dtype, ReduceOp op, int root,
                                  const CollectiveOptions& options) {
  return Run(internal::ReduceCall(place(), {dtype, op}, send, recv, root),
             options);
}

Work ProcessGroup::ReduceAsync(ConstBytes send, MutableBytes recv, DType dtype,
                               ReduceOp op, int root,
                               const CollectiveOptions& options) {
  return Start(internal::ReduceCall(place(), {dtype, op}, send, recv, root),
               options);
}

absl::Status ProcessGroup::ReduceScatter(ConstBytes send, MutableBytes recv,
                                         DType dtype, ReduceOp op,
                                         const CollectiveOptions& options) {
  return Run(internal::ReduceScatterCall(place(), {dtype, op}, send, recv),
             options);
}

Work ProcessGroup::ReduceScatterAsync(ConstBytes send, MutableBytes recv,
                                      DType dtype, ReduceOp op,
                                      const CollectiveOptions& options) {
  return Start(internal::ReduceScatterCall(place(), {dtype, op}, send, recv),
               options);
}

absl::Status ProcessGroup::ReduceScatterV(absl::Span<const ConstBytes> sends,
                                          MutableBytes recv, DType dtype,
                                          ReduceOp op,
                                          const CollectiveOptions& options) {
  return Run(internal::ReduceScatterVCall(place(), {dtype, op}, sends, recv),
             options);
}

Work ProcessGroup::ReduceScatterVAsync(absl::Span<const ConstBytes> sends,
                                       MutableBytes recv, DType dtype,
                                       ReduceOp op,
                                       const CollectiveOptions& options) {
  return Start(internal::ReduceScatterVCall(place(), {dtype, op}, sends, recv),
               options);
}

absl::Status ProcessGroup::AllGather(ConstBytes send, MutableBytes recv,
                                     const CollectiveOptions& options) {
  return Run(internal::AllGatherCall(place(), send, recv), options);
}

Work ProcessGroup::AllGatherAsync(ConstBytes send, MutableBytes recv,
                                  const CollectiveOptions& options) {
  return Start(internal::AllGatherCall(place(), send, recv), options);
}

absl::Status ProcessGroup::AllGatherV(ConstBytes send,
                                      absl::Span<const MutableBytes> recvs,
                                      const CollectiveOptions& options) {
  return Run(internal::AllGatherVCall(place(), send, recvs), options);
}

Work ProcessGroup::AllGatherVAsync(ConstBytes send,
                                   absl::Span<const MutableBytes> recvs,
                                   const CollectiveOptions& options) {
  return Start(internal::AllGatherVCall(place(), send, recvs), options);
}

absl::Status ProcessGroup::Gather(ConstBytes send, MutableBytes recv, int root,
                                  const CollectiveOptions& options) {
  return Run(internal::GatherCall(place(), send, recv, root), options);
}

Work ProcessGroup::GatherAsync(ConstBytes send, MutableBytes recv, int root,
                               const CollectiveOptions& options) {
  return Start(internal::GatherCall(place(), send, recv, root), options);
}

absl::Status ProcessGroup::GatherV(ConstBytes send,
                                   absl::Span<const MutableBytes> recvs,
                                   int root, const CollectiveOptions& options) {
  return Run(internal::GatherVCall(place(), send, recvs, root), options);
}

Work ProcessGroup::GatherVAsync(ConstBytes send,
                                absl::Span<const MutableBytes> recvs, int root,
                                const CollectiveOptions& options) {
  return Start(internal::GatherVCall(place(), send, recvs, root), options);
}

absl::Status ProcessGroup::Scatter(ConstBytes send, MutableBytes recv, int root,
                                   const CollectiveOptions& options) {
  return Run(internal::ScatterCall(place(), send, recv, root), options);
}

Work ProcessGroup::ScatterAsync(ConstBytes send, MutableBytes recv, int root,
                                const CollectiveOptions& options) {
  return Start(internal::ScatterCall(place(), send, recv, root), options);
}

absl::Status ProcessGroup::ScatterV(absl::Span<const ConstBytes> sends,
                                    MutableBytes recv, int root,
                                    const CollectiveOptions& options) {
  return Run(internal::ScatterVCall(place(), sends, recv, root), options);
}

Work ProcessGroup::ScatterVAsync(absl::Span<const ConstBytes> sends,
                                 MutableBytes recv, int root,
                                 const CollectiveOptions& options) {
  return Start(internal::ScatterVCall(place(), sends, recv, root), options);
}

absl::Status ProcessGroup::AllToAll(ConstBytes send, MutableBytes recv,
                                    const CollectiveOptions& options) {
  return Run(internal::AllToAllCall(place(), send, recv), options);
}

Work ProcessGroup::AllToAllAsync(ConstBytes send, MutableBytes recv,
                                 const CollectiveOptions& options) {
  return Start(internal::AllToAllCall(place(), send, recv), options);
}

absl::Status ProcessGroup::AllToAllV(absl::Span<const ConstBytes> sends,
                                     absl::Span<const MutableBytes> recvs,
                                     const CollectiveOptions& options) {
  return Run(internal::AllToAllVCall(place(), sends, recvs), options);
}

Work ProcessGroup::AllToAllVAsync(absl::Span<const ConstBytes> sends,
                                  absl::Span<const MutableBytes> recvs,
                                  const CollectiveOptions& options) {
  return Start(internal::AllToAllVCall(place(), sends, recvs), options);
}

absl::Status ProcessGroup::Send(ConstBytes send, int destination, int64_t tag,
                                const CollectiveOptions& options) {
  return RunMessage(internal::SendCall(place(), send, destination, tag),
                    options);
}

Work ProcessGroup::SendAsync(ConstBytes send, int destination, int64_t tag,
                             const CollectiveOptions& options) {
  return StartMessage(internal::SendCall(place(), send, destination, tag),
                      options);
}

absl::Status ProcessGroup::Recv(MutableBytes recv, int source, int64_t tag,
                                const CollectiveOptions& options) {
  return RunMessage(internal::RecvCall(place(), recv, source, tag), options);
}

Work ProcessGroup::RecvAsync(MutableBytes recv, int source, int64_t tag,
                             const CollectiveOptions& options) {
  return StartMessage(internal::RecvCall(place(), recv, source, tag), options);
}

OperationPath ProcessGroup::PathOf(CollectiveOp op, DType dtype,
                                   ReduceOp reduction,
                                   DeviceType device) const {
  if (device != DeviceType::kCpu) {
    const BackendInfo* const info = device_backend();
    if (info == nullptr || info->device_type != device) {
      return OperationPath::kUnsupported;
    }
    return Emulation::PathOf(info->native, op, dtype, reduction);
  }
  return Emulation::PathOf(backend_info_.native, op, dtype, reduction);
}

absl::Status ProcessGroup::health() const {
  absl::MutexLock lock(&state_mutex_);
  if (destroyed_) {
    return absl::FailedPreconditionError(
        absl::StrCat("group \"", name(), "\" was destroyed"));
  }
  return poison_;
}

bool ProcessGroup::IsDestroyed() const {
  absl::MutexLock lock(&state_mutex_);
  return destroyed_;
}

// Ranks that are no member get their answer before a list is looked at.
Place ProcessGroup::place() const { return {std::max(rank(), 0), size()}; }

Deadline ProcessGroup::DeadlineOf(const CollectiveOptions& options) const {
  return Deadline::After(options.timeout.value_or(options_.timeout));
}

absl::Status ProcessGroup::Admit(const CollectiveCall& call) const {
  const Collective& desc = call.desc;
  if (!is_member()) {
    return Describe(desc,
                    absl::FailedPreconditionError(absl::StrCat(
                        "this process is not a member of the group, whose "
                        "ranks are ranks ",
                        absl::StrJoin(world_ranks(), ", "), " of the job")));
  }
  if (!call.valid.ok()) return Describe(desc, call.valid);
  if (PathOf(desc.op, desc.dtype, desc.reduction) ==
      OperationPath::kUnsupported) {
    return Describe(
        desc, absl::UnimplementedError(absl::StrCat(
                  "backend ", backend_info_.name, " has no ", Name(desc.op),
                  " and nothing from which it could be made")));
  }
  return options_.device_backend == nullptr ? absl::OkStatus()
                                            : CheckBuffers(desc, Device());
}

absl::Status ProcessGroup::Run(CollectiveCall call,
                               const CollectiveOptions& options) {
  if (!options.device.is_cpu()) {
    return RunOnDevice(std::move(call), options, nullptr);
  }
  SHERD_RETURN_IF_ERROR(Admit(call));
  internal::SetType(options.dtype, call);
  call.desc.deadline = DeadlineOf(options);
  call.desc.sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  queue_->WaitIdle();
  const FlightTicket ticket = Record(call.desc, /*started=*/true);
  return Conclude(ticket, Execute(call.desc));
}

Work ProcessGroup::Start(CollectiveCall call,
                         const CollectiveOptions& options) {
  if (!options.device.is_cpu()) return StartOnDevice(std::move(call), options);
  if (absl::Status status = Admit(call); !status.ok()) {
    return Work(std::move(status));
  }
  internal::SetType(options.dtype, call);
  call.desc.deadline = DeadlineOf(options);
  call.desc.sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  const FlightTicket ticket = Record(call.desc, /*started=*/false);
  return Work(queue_->Push([this, desc = call.desc, ticket] {
    tag_->recorder().MarkStarted(ticket);
    return Conclude(ticket, Execute(desc));
  }));
}

absl::Status ProcessGroup::RunMessage(CollectiveCall call,
                                      const CollectiveOptions& options) {
  if (!options.device.is_cpu()) {
    return RunOnDevice(std::move(call), options, nullptr);
  }
  SHERD_RETURN_IF_ERROR(Admit(call));
  call.desc.deadline = DeadlineOf(options);
  if (CollectiveQueue* const queue = MessageQueue(call.desc, false)) {
    queue->WaitIdle();
  }
  call.desc.sequence = messages_.fetch_add(1, std::memory_order_relaxed) + 1;
  const FlightTicket ticket = Record(call.desc, /*started=*/true);
  return Conclude(ticket, ExecuteMessage(call.desc));
}

Work ProcessGroup::StartMessage(CollectiveCall call,
                                const CollectiveOptions& options) {
  if (!options.device.is_cpu()) return StartOnDevice(std::move(call), options);
  if (absl::Status status = Admit(call); !status.ok()) {
    return Work(std::move(status));
  }
  call.desc.deadline = DeadlineOf(options);
  call.desc.sequence = messages_.fetch_add(1, std::memory_order_relaxed) + 1;
  const FlightTicket ticket = Record(call.desc, /*started=*/false);
  return Work(
      MessageQueue(call.desc, true)->Push([this, desc = call.desc, ticket] {
        tag_->recorder().MarkStarted(ticket);
        return Conclude(ticket, ExecuteMessage(desc));
      }));
}

FlightTicket ProcessGroup::Record(const Collective& desc, bool started) {
  const OperationPath path =
      PathOf(desc.op, desc.dtype, desc.reduction,
             desc.on_device ? options_.device.type : DeviceType::kCpu);
  return tag_->recorder().Begin(*tag_, desc, path, started);
}

absl::Status ProcessGroup::Conclude(const FlightTicket& ticket,
                                    absl::Status status) {
  tag_->recorder().End(ticket, status.code());
  if (!status.ok()) {
    DumpOnce(absl::IsDeadlineExceeded(status) ? FlightReason::kTimeout
                                              : FlightReason::kPoisoned,
             status.message());
  }
  return status;
}

void ProcessGroup::DumpOnce(FlightReason reason, absl::string_view detail) {
  if (!dumped_.exchange(true)) internal::DumpFlight(*tag_, reason, detail);
}

GroupCounters ProcessGroup::counters() const {
  return is_member() ? tag_->counters() : GroupCounters();
}

CollectiveQueue* ProcessGroup::MessageQueue(const Collective& desc, bool make) {
  absl::MutexLock lock(&peers_mutex_);
  std::unique_ptr<CollectiveQueue>& queue =
      peers_[2 * desc.root + (desc.op == CollectiveOp::kRecv ? 1 : 0)];
  if (queue == nullptr && make) queue = std::make_unique<CollectiveQueue>();
  return queue.get();
}

absl::Status ProcessGroup::Execute(Collective desc) {
  absl::MutexLock lock(&run_mutex_);
  if (!usable_.load(std::memory_order_acquire)) return Refusal(desc);
  absl::Status status = Transfer(desc);
  if (status.ok()) status = Pass(FaultPoint::kAfterCompletion, desc);
  return status.ok() ? status : Poison(desc, std::move(status));
}

absl::Status ProcessGroup::ExecuteMessage(Collective desc) {
  absl::ReaderMutexLock lock(&open_mutex_);
  if (!usable_.load(std::memory_order_acquire)) return Refusal(desc);
  absl::Status status = PostAndWait(desc);
  if (absl::IsInvalidArgument(status)) {
    // Of two ranks that contradict each other about a length neither is right
    // before the other, and every rank of the group is to understand it.
    status = absl::InvalidArgumentError(absl::StrReplaceAll(
        status.message(), {{"this rank", absl::StrCat("rank ", rank())}}));
  }
  if (status.ok()) status = Pass(FaultPoint::kAfterCompletion, desc);
  return status.ok() ? status : Poison(desc, std::move(status));
}

absl::Status ProcessGroup::Transfer(Collective& desc) {
  if (desc.even) ListEvenBlocks(desc, even_blocks_);
  const auto post = [this](Collective part) {
    run_mutex_.AssertHeld();
    part.sequence = ++posted_;
    return PostAndWait(part);
  };
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kBeforeComparison, desc));
  if (comparison_ != nullptr) {
    SHERD_RETURN_IF_ERROR(
        comparison_->Compare(desc, [&](absl::Span<const ConstBytes> sends,
                                       absl::Span<const MutableBytes> recvs) {
          return post({.op = CollectiveOp::kAllToAllV,
                       .sends = sends,
                       .recvs = recvs,
                       .deadline = desc.deadline});
        }));
  }
  CopyOwnBlock(desc, rank(), size());
  if (size() == 1) return absl::OkStatus();
  const auto launch = [&](const Collective& part) {
    return PathOf(part.op, part.dtype, part.reduction) == OperationPath::kNative
               ? post(part)
               : emulation_->Run(part, post);
  };
  // A vendor's library may return at once from a call without bytes, whatever
  // the other ranks call.
  if (MovesNothing(desc) && !backend_info_.compares_calls) {
    return launch(InPlaceOfNothing(desc));
  }
  return launch(desc);
}

void ProcessGroup::ListEvenBlocks(Collective& desc, EvenBlocks& blocks) const {
  const bool is_root = desc.root == rank();
  const size_t n = desc.bytes;
  const bool sends = desc.op == CollectiveOp::kAllToAllV ||
                     desc.op == CollectiveOp::kReduceScatter ||
                     (desc.op == CollectiveOp::kScatter && is_root);
  const bool recvs = desc.op == CollectiveOp::kAllToAllV ||
                     (desc.op == CollectiveOp::kGather && is_root);
  if (sends) {
    const auto* const from = static_cast<const std::byte*>(desc.in);
    blocks.sends.resize(size());
    for (int r = 0; r < size(); ++r) blocks.sends[r] = {from + r * n, n};
    desc.sends = blocks.sends;
  }
  if (recvs) {
    auto* const to = static_cast<std::byte*>(desc.out);
    blocks.recvs.resize(size());
    for (int r = 0; r < size(); ++r) blocks.recvs[r] = {to + r * n, n};
    desc.recvs = blocks.recvs;
  }
}

absl::Status ProcessGroup::PostAndWait(const Collective& desc) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kBeforePost, desc));
  CollectiveRequest request;
  SHERD_ASSIGN_OR_RETURN(bool done, communicator_->Post(desc, request));
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kAfterPost, desc));
  for (Pause pause; !done; pause()) {
    SHERD_ASSIGN_OR_RETURN(done, communicator_->Test(request));
    if (done) break;
    if (desc.deadline.HasPassed()) {
      return absl::DeadlineExceededError("it did not end in time");
    }
    if (!usable_.load(std::memory_order_relaxed)) {
      return absl::AbortedError("the group was aborted");
    }
    if (comparison_ == nullptr) continue;
    if (const std::optional<int> failed = comparison_->FailedRank()) {
      return WithFailedRank(absl::UnavailableError("gave up"), *failed);
    }
  }
  return absl::OkStatus();
}

absl::Status ProcessGroup::Poison(const Collective& desc, absl::Status status) {
  const std::optional<int> peer = ErrorRank(status);
  // Written before the connections close, so that the ranks which notice find
  // it; then closed, so that they do notice.
  const bool is_difference = absl::IsInvalidArgument(status);
  board_->Report(is_difference ? status : Describe(desc, status), peer,
                 is_difference);
  if (comparison_ != nullptr) comparison_->Fail();
  if (communicator_ != nullptr) communicator_->Abort();
  if (device_ != nullptr) device_->Abort();
  absl::MutexLock one_at_a_time(&poison_mutex_);
  {
    // An abort by this program, or another thread's failure, is the cause,
    // whatever the backend says of it.
    absl::MutexLock lock(&state_mutex_);
    if (!poison_.ok()) return Describe(desc, poison_);
  }
  if (!is_difference) status = FindCause(peer, std::move(status));
  if (const std::optional<int> failed = FailedRank(status)) {
    tag_->SetFailedRank(options_.world_ranks[*failed]);
  }
  status = Describe(desc, WithJobRank(std::move(status)));
  absl::MutexLock lock(&state_mutex_);
  if (poison_.ok()) poison_ = status;
  usable_.store(false, std::memory_order_release);
  return status;
}

absl::Status ProcessGroup::FindCause(std::optional<int> peer,
                                     absl::Status symptom) const {
  // Where the backend cannot tell whom it waited for, the ranks can.
  if (!peer) peer = board_->FirstSuspect();
  if (!peer ||
      !(absl::IsUnavailable(symptom) || absl::IsDeadlineExceeded(symptom))) {
    return symptom;
  }
  const FailureBoard::Verdict verdict =
      board_->FindCulprit(*peer, symptom.message());
  // A rank that is gone is a lost peer even where only time told.
  const absl::StatusCode code = verdict.code.value_or(symptom.code());
  if (!verdict.rank) return absl::Status(code, verdict.cause);
  return WithFailedRank(
      absl::Status(code, code == absl::StatusCode::kInvalidArgument
                             ? verdict.cause
                             : absl::StrCat("rank ", *verdict.rank, ": ",
                                            verdict.cause)),
      *verdict.rank);
}

absl::Status ProcessGroup::Refusal(const Collective& desc) const {
  const absl::Status status = health();
  absl::Status refused = absl::FailedPreconditionError(
      absl::StrCat("the group is not usable any more: ", status.message()));
  return Describe(desc,
                  WithErrorInfo(std::move(refused), GetErrorInfo(status)));
}

absl::Status ProcessGroup::Describe(const Collective& desc,
                                    absl::Status status) const {
  return Describe(Name(desc.op), desc.sequence, std::move(status));
}

absl::Status ProcessGroup::Describe(absl::string_view operation,
                                    uint64_t sequence,
                                    absl::Status status) const {
  ErrorInfo info;
  info.group = name();
  info.operation = std::string(operation);
  info.sequence = sequence;
  std::string where = absl::StrCat("group \"", name(), "\", rank ", rank());
  if (is_member() && world_ranks()[rank()] != rank()) {
    absl::StrAppend(&where, " (rank ", world_ranks()[rank()], " of the job)");
  }
  absl::StrAppend(&where, ", ", operation);
  if (sequence != 0) absl::StrAppend(&where, " #", sequence);
  return WithErrorInfo(Annotate(std::move(status), where), info);
}

absl::Status ProcessGroup::WithJobRank(absl::Status status) const {
  const std::optional<int> named = ErrorRank(status);
  if (!named || *named == rank() || world_ranks()[*named] == *named) {
    return status;
  }
  return WithErrorInfo(
      absl::Status(status.code(),
                   absl::StrCat(status.message(), "; rank ", *named,
                                " of the group is rank ", world_ranks()[*named],
                                " of the job")),
      GetErrorInfo(status));
}

}  // namespace sherd
