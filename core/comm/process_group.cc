#include "sherd/core/comm/process_group.h"

#include <sched.h>

#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective_queue.h"
#include "sherd/core/comm/failure_board.h"

namespace sherd {
namespace {

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
  static constexpr int kYields = 200;
  int rounds_ = 0;
};

bool InPlace(ConstBytes send, MutableBytes recv, int rank) {
  return send.data() == recv.data() + rank * send.size();
}

bool Overlap(ConstBytes a, ConstBytes b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() &&
         b.data() < a.data() + a.size();
}

absl::Status CheckAllGather(ConstBytes send, MutableBytes recv, int rank,
                            int size) {
  const std::optional<size_t> expected =
      CheckedMul(send.size(), static_cast<size_t>(size));
  if (!expected || recv.size() != *expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the receive buffer has ", recv.size(), " bytes, expected ", size,
        " ranks times the ", send.size(), " bytes of the send buffer"));
  }
  if (!InPlace(send, recv, rank) && Overlap(send, recv)) {
    return absl::InvalidArgumentError(
        "the send buffer overlaps the receive buffer without being this "
        "rank's block of it");
  }
  return absl::OkStatus();
}

absl::Status CheckAllToAllV(absl::Span<const ConstBytes> sends,
                            absl::Span<const MutableBytes> recvs, int rank,
                            int size) {
  const size_t expected = static_cast<size_t>(size);
  if (sends.size() != expected || recvs.size() != expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there are ", sends.size(), " send and ", recvs.size(),
        " receive entries, expected ", size, " of each, one per rank"));
  }
  if (sends[rank].size() != recvs[rank].size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("this rank's own send entry has ", sends[rank].size(),
                     " bytes and its receive entry ", recvs[rank].size(),
                     ", expected equal lengths"));
  }
  return absl::OkStatus();
}

void CopyOwn(ConstBytes from, MutableBytes to) {
  if (from.data() != to.data() && !from.empty()) {
    std::memcpy(to.data(), from.data(), from.size());
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Create(
    const Backend& backend, ProcessGroupOptions options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of world size ", options.size,
                     ": expected 0 <= rank < world size"));
  }
  const Deadline deadline = Deadline::After(options.timeout);
  auto group = absl::WrapUnique(new ProcessGroup(backend, std::move(options)));
  const auto connect = [&]() -> absl::Status {
    SHERD_RETURN_IF_ERROR(group->board_->Join(deadline));
    if (group->size() == 1) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<Communicator>> communicator =
        backend.CreateCommunicator({.group = group->name(),
                                    .rank = group->rank(),
                                    .size = group->size(),
                                    .store = &group->store(),
                                    .deadline = deadline});
    if (!communicator.ok()) {
      group->board_->Report(communicator.status(),
                            BlamedRank(communicator.status()));
      return Annotate(communicator.status(),
                      absl::StrCat("backend ", group->backend().name));
    }
    group->communicator_ = *std::move(communicator);
    return absl::OkStatus();
  };
  if (absl::Status status = connect(); !status.ok()) {
    // It never was a member: it neither leaves the group, which might be that
    // of another process with the same rank, nor retires from its store.
    {
      absl::MutexLock lock(&group->state_mutex_);
      group->destroyed_ = true;
    }
    ErrorInfo info;
    info.group = group->name();
    info.operation = "init";
    return WithErrorInfo(
        Annotate(std::move(status),
                 absl::StrCat("group \"", group->name(), "\", rank ",
                              group->rank(), ", init")),
        info);
  }
  return std::shared_ptr<ProcessGroup>(std::move(group));
}

ProcessGroup::ProcessGroup(const Backend& backend, ProcessGroupOptions options)
    : options_(std::move(options)),
      backend_(backend.info()),
      board_(std::make_unique<internal::FailureBoard>(
          options_.store, options_.rank, options_.size)),
      queue_(std::make_unique<internal::CollectiveQueue>()) {}

ProcessGroup::~ProcessGroup() { Destroy().IgnoreError(); }

absl::Status ProcessGroup::Barrier(const CollectiveOptions& options) {
  return Run({.op = CollectiveOp::kBarrier}, options);
}

absl::Status ProcessGroup::Broadcast(MutableBytes buffer, int root,
                                     const CollectiveOptions& options) {
  const CollectiveDesc desc = {.op = CollectiveOp::kBroadcast,
                               .root = root,
                               .out = buffer.data(),
                               .bytes = buffer.size()};
  if (root < 0 || root >= size()) {
    return Describe(desc,
                    absl::InvalidArgumentError(absl::StrCat(
                        "root is ", root, ", expected 0 to ", size() - 1)));
  }
  return Run(desc, options);
}

absl::Status ProcessGroup::AllGather(ConstBytes send, MutableBytes recv,
                                     const CollectiveOptions& options) {
  const CollectiveDesc desc = {.op = CollectiveOp::kAllGather,
                               .in = send.data(),
                               .out = recv.data(),
                               .bytes = send.size()};
  if (absl::Status status = CheckAllGather(send, recv, rank(), size());
      !status.ok()) {
    return Describe(desc, std::move(status));
  }
  return Run(desc, options);
}

Work ProcessGroup::AllGatherAsync(ConstBytes send, MutableBytes recv,
                                  const CollectiveOptions& options) {
  const CollectiveDesc desc = {.op = CollectiveOp::kAllGather,
                               .in = send.data(),
                               .out = recv.data(),
                               .bytes = send.size()};
  if (absl::Status status = CheckAllGather(send, recv, rank(), size());
      !status.ok()) {
    return Work(Describe(desc, std::move(status)));
  }
  return Start(desc, options);
}

absl::Status ProcessGroup::AllToAllV(absl::Span<const ConstBytes> sends,
                                     absl::Span<const MutableBytes> recvs,
                                     const CollectiveOptions& options) {
  const CollectiveDesc desc = {
      .op = CollectiveOp::kAllToAllV, .sends = sends, .recvs = recvs};
  if (absl::Status status = CheckAllToAllV(sends, recvs, rank(), size());
      !status.ok()) {
    return Describe(desc, std::move(status));
  }
  return Run(desc, options);
}

Work ProcessGroup::AllToAllVAsync(absl::Span<const ConstBytes> sends,
                                  absl::Span<const MutableBytes> recvs,
                                  const CollectiveOptions& options) {
  const CollectiveDesc desc = {
      .op = CollectiveOp::kAllToAllV, .sends = sends, .recvs = recvs};
  if (absl::Status status = CheckAllToAllV(sends, recvs, rank(), size());
      !status.ok()) {
    return Work(Describe(desc, std::move(status)));
  }
  return Start(desc, options);
}

absl::Status ProcessGroup::Destroy() {
  queue_->WaitIdle();
  {
    absl::MutexLock lock(&state_mutex_);
    if (destroyed_) return absl::OkStatus();
    destroyed_ = true;
  }
  {
    absl::MutexLock lock(&run_mutex_);
    // Written before the connections close, so that a rank which still needs
    // this one can say what happened.
    board_->ReportLeaving();
    communicator_.reset();
  }
  if (options_.on_destroy) options_.on_destroy();
  return absl::OkStatus();
}

void ProcessGroup::Abort(absl::Status cause) {
  {
    absl::MutexLock lock(&state_mutex_);
    if (destroyed_) return;
    if (poison_.ok()) poison_ = cause;
  }
  board_->Report(cause, std::nullopt);
  // Only Destroy replaces communicator_, and that must not run concurrently
  // with any other call.
  if (communicator_ != nullptr) communicator_->Abort();
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

Deadline ProcessGroup::DeadlineOf(const CollectiveOptions& options) const {
  return Deadline::After(options.timeout.value_or(options_.timeout));
}

absl::Status ProcessGroup::Run(CollectiveDesc desc,
                               const CollectiveOptions& options) {
  desc.deadline = DeadlineOf(options);
  queue_->WaitIdle();
  return PostAndFinish(desc);
}

Work ProcessGroup::Start(CollectiveDesc desc,
                         const CollectiveOptions& options) {
  desc.deadline = DeadlineOf(options);
  return Work(queue_->Push([this, desc] { return PostAndFinish(desc); }));
}

absl::Status ProcessGroup::PostAndFinish(CollectiveDesc desc) {
  absl::MutexLock lock(&run_mutex_);
  desc.sequence = ++sequence_;
  if (absl::Status status = health(); !status.ok()) {
    const std::optional<int> blamed = BlamedRank(status);
    absl::Status refused = absl::FailedPreconditionError(
        absl::StrCat("the group is not usable any more: ", status.message()));
    if (blamed) refused = WithRank(std::move(refused), *blamed);
    return Describe(desc, std::move(refused));
  }
  if (desc.op == CollectiveOp::kAllGather) {
    const size_t n = desc.bytes;
    CopyOwn(ConstBytes(static_cast<const std::byte*>(desc.in), n),
            MutableBytes(static_cast<std::byte*>(desc.out) + rank() * n, n));
  } else if (desc.op == CollectiveOp::kAllToAllV) {
    CopyOwn(desc.sends[rank()], desc.recvs[rank()]);
  }
  const bool moves_nothing =
      desc.bytes == 0 && (desc.op == CollectiveOp::kBroadcast ||
                          desc.op == CollectiveOp::kAllGather);
  if (size() == 1 || moves_nothing) return absl::OkStatus();
  absl::Status status = Transfer(desc);
  return status.ok() ? status : Poison(desc, std::move(status));
}

absl::Status ProcessGroup::Transfer(const CollectiveDesc& desc) {
  CollectiveRequest request;
  SHERD_RETURN_IF_ERROR(communicator_->Post(desc, request));
  if (communicator_->CompletesInPost()) return absl::OkStatus();
  Pause pause;
  for (;;) {
    SHERD_ASSIGN_OR_RETURN(const bool done, communicator_->Test(request));
    if (done) return absl::OkStatus();
    if (desc.deadline.HasPassed()) {
      communicator_->Abort();
      return absl::DeadlineExceededError("it did not end in time");
    }
    pause();
  }
}

absl::Status ProcessGroup::Poison(const CollectiveDesc& desc,
                                  absl::Status status) {
  const std::optional<int> peer = BlamedRank(status);
  // Written before the connections close, so that the ranks which notice find
  // it; then closed, so that they do notice.
  board_->Report(Describe(desc, status), peer);
  communicator_->Abort();
  {
    // An abort by this program is the cause, whatever the backend says of it.
    absl::MutexLock lock(&state_mutex_);
    if (!poison_.ok()) return Describe(desc, poison_);
  }
  if (peer &&
      (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status))) {
    const internal::FailureBoard::Verdict verdict =
        board_->FindCulprit(*peer, status.message());
    // A rank that is gone is a lost peer even where only time told.
    const absl::StatusCode code =
        verdict.died ? absl::StatusCode::kUnavailable : status.code();
    status = WithRank(absl::Status(code, absl::StrCat("rank ", verdict.rank,
                                                      ": ", verdict.cause)),
                      verdict.rank);
  }
  status = Describe(desc, std::move(status));
  absl::MutexLock lock(&state_mutex_);
  if (poison_.ok()) poison_ = status;
  return status;
}

absl::Status ProcessGroup::Describe(const CollectiveDesc& desc,
                                    absl::Status status) const {
  ErrorInfo info;
  info.group = name();
  info.operation = std::string(Name(desc.op));
  info.sequence = desc.sequence;
  std::string where = absl::StrCat("group \"", name(), "\", rank ", rank(),
                                   ", ", info.operation);
  if (desc.sequence != 0) absl::StrAppend(&where, " #", desc.sequence);
  return WithErrorInfo(Annotate(std::move(status), where), info);
}

}  // namespace sherd
