#include "sherd/core/comm/channel/device_channel.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/work_state.h"

namespace sherd::internal {
namespace {

// How long a rank that leaves waits for the others to leave as well. Data sent
// to another host may still be in transit from this rank's memory.
constexpr absl::Duration kLeave = absl::Seconds(1);
constexpr absl::Duration kLeaveOtherHosts = absl::Seconds(10);
constexpr char kLeavingKey[] = "device/leaving";
// Between two checks of how many ranks have called.
constexpr absl::Duration kLongestPause = absl::Milliseconds(50);
// Looks at the processes of this host for each question to the store.
constexpr int kLooksPerQuestion = 10;

absl::StatusOr<int64_t> HowManyLeave(Store& store) {
  SHERD_ASSIGN_OR_RETURN(
      const std::string count,
      store.Get(kLeavingKey, Deadline::After(absl::ZeroDuration())));
  int64_t leaving = 0;
  if (!absl::SimpleAtoi(count, &leaving)) {
    return absl::InternalError("the count of ranks that leave is not a number");
  }
  return leaving;
}

}  // namespace

DeviceChannel::DeviceChannel(const BackendInfo& backend, CallSupervisor& calls,
                             DeviceChannelOptions options)
    : Channel(backend, calls), options_(options) {}

absl::Status DeviceChannel::Open(DeviceGroupOptions options) {
  SHERD_ASSIGN_OR_RETURN(group_, DeviceGroup::Create(std::move(options), *this,
                                                     calls().recorder()));
  return absl::OkStatus();
}

void DeviceChannel::TakeBack(Deadline deadline) {
  if (group_ != nullptr) group_->Close([] { return false; }, deadline);
}

absl::Status DeviceChannel::Run(Collective& call) {
  if (group_->IsInBatch()) return Queue(call, nullptr);
  group_->Reclaim();
  absl::MutexLock lock(&group_->call_mutex());
  return Queue(call, nullptr);
}

Work DeviceChannel::Start(const Collective& call) {
  if (group_->IsInBatch()) {
    return Work(
        calls().Describe(call, absl::FailedPreconditionError(
                                   "an asynchronous call in a batch: make all "
                                   "calls of it in their synchronous forms")));
  }
  group_->Reclaim();
  Collective queued = call;
  std::shared_ptr<WorkState> work;
  absl::MutexLock lock(&group_->call_mutex());
  absl::Status status = Queue(queued, &work);
  return work == nullptr ? Work(std::move(status)) : Work(std::move(work));
}

absl::Status DeviceChannel::Queue(Collective& call,
                                  std::shared_ptr<WorkState>* work) {
  if (!calls().peers().usable()) return calls().Refusal(call);
  if (absl::Status status = group_->Admit(call); !status.ok()) {
    return calls().Describe(call, std::move(status));
  }
  const FlightTicket ticket =
      calls().Begin(call, PathOf(call), /*started=*/true);
  even_blocks_.List(membership(), call);
  absl::Status status = Launch(call, ticket, work);
  if (status.ok()) {
    batched_ = call;
    return status;
  }
  return calls().End(ticket, calls().Fail(call, std::move(status)));
}

absl::Status DeviceChannel::Launch(const Collective& call,
                                   const FlightTicket& ticket,
                                   std::shared_ptr<WorkState>* work) {
  SHERD_RETURN_IF_ERROR(calls().Compare(
      call,
      [](absl::Span<const ConstBytes>,
         absl::Span<const MutableBytes>) -> absl::Status {
        return absl::InternalError("calls on devices send no lines");
      }));
  SHERD_RETURN_IF_ERROR(
      calls().MaybeInjectFault(FaultPoint::kBeforePost, call));
  if (work == nullptr) {
    SHERD_RETURN_IF_ERROR(group_->Queue(call, ticket));
  } else {
    SHERD_ASSIGN_OR_RETURN(*work, group_->EnqueueOnSideStream(call, ticket));
  }
  // Its ticket is ended by the device part.
  calls().MaybeInjectFault(FaultPoint::kAfterPost, call).IgnoreError();
  return absl::OkStatus();
}

absl::Status DeviceChannel::Synchronize() {
  SHERD_RETURN_IF_ERROR(group_->Synchronize());
  return calls().peers().cause();
}

absl::Status DeviceChannel::RefuseBatch(const Membership& membership,
                                        absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("group \"", membership.name(), "\", rank ",
                   membership.rank(), ", batch: ", why));
}

absl::Status DeviceChannel::Batch(absl::FunctionRef<absl::Status()> calls) {
  const auto refuse = [this](absl::string_view why) {
    return RefuseBatch(membership(), why);
  };
  PeerMonitor& peers = this->calls().peers();
  if (group_->IsInBatch()) return refuse("there is one under way already");
  group_->Reclaim();
  absl::MutexLock lock(&group_->call_mutex());
  if (!peers.usable()) return refuse(peers.health().message());
  batched_ = Collective();
  batched_.on_device = true;
  if (absl::Status status = group_->BeginBatch(); !status.ok()) {
    return refuse(status.message());
  }
  absl::Status status = calls();
  absl::Status ended = group_->EndBatch(/*keep=*/status.ok());
  if (status.ok() && ended.ok()) return status;
  if (status.ok()) return this->calls().Fail(batched_, std::move(ended));
  // Other ranks may wait for the calls made before.
  if (batched_.sequence != 0 && peers.usable()) {
    // In any case not a difference between the ranks' calls.
    this->calls()
        .Fail(batched_, absl::IsInvalidArgument(status)
                            ? absl::CancelledError(status.message())
                            : status)
        .IgnoreError();
  }
  return status;
}

absl::Duration DeviceChannel::LeaveTime() const {
  return std::min(membership().one_host() ? kLeave : kLeaveOtherHosts,
                  options_.timeout);
}

bool DeviceChannel::AllLeave() {
  const Deadline deadline = Deadline::After(LeaveTime());
  absl::StatusOr<int64_t> leaving = options_.store->Add(kLeavingKey, 1);
  bool failed = false;
  absl::Duration pause = absl::Milliseconds(2);
  const CallComparison* const comparison = calls().comparison();
  while (leaving.ok() && *leaving < membership().size()) {
    if (failed || deadline.HasPassed()) return false;
    // A rank that still needs this one fails and never leaves.
    if (comparison != nullptr && comparison->FailedRank()) return false;
    failed = calls().peers().FindFailedRank().has_value();
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestPause);
    // Once more also then: a rank counts itself before its process ends.
    leaving = HowManyLeave(*options_.store);
  }
  return leaving.ok();
}

void DeviceChannel::Close() {
  const bool poisoned = !calls().peers().cause().ok();
  group_->Close([&] { return !poisoned && AllLeave(); },
                Deadline::After(LeaveTime()));
}

absl::Status DeviceChannel::PeerError() {
  if (!calls().peers().usable()) {
    return absl::AbortedError("the group was aborted");
  }
  const CallComparison* const comparison = calls().comparison();
  if (comparison == nullptr) return absl::OkStatus();
  const std::optional<int> failed = comparison->FailedRank();
  // This rank's own failure is already being reported to all ranks.
  if (!failed || *failed == membership().rank()) return absl::OkStatus();
  return WithFailedRank(absl::UnavailableError("gave up"), *failed);
}

absl::Status DeviceChannel::DeadPeer(const Collective& call) {
  if (const CallComparison* const comparison = calls().comparison()) {
    const bool message = IsPointToPoint(call.op);
    const std::optional<int> left = comparison->RankThatLeft(
        message ? std::numeric_limits<uint64_t>::max() : call.sequence);
    if (left && (!message || *left == call.root)) {
      return WithFailedRank(absl::UnavailableError("left the group"), *left);
    }
  }
  // Failures on other hosts are only known from their reports.
  const bool ask =
      !membership().one_host() && ++looks_ % kLooksPerQuestion == 0;
  return calls().peers().FindDeadPeer(ask);
}

absl::Status DeviceChannel::TimeoutError(const Collective& call) {
  if (IsPointToPoint(call.op)) {
    return WithFailedRank(absl::DeadlineExceededError("it did not end in time"),
                          call.root);
  }
  std::vector<int> behind;
  if (const CallComparison* const comparison = calls().comparison()) {
    behind = comparison->RanksBehind(call.sequence);
  }
  if (behind.empty()) {
    return absl::DeadlineExceededError(
        "it did not end in time on the device, though no rank is known to be "
        "late: earlier work in the stream may not have ended");
  }
  return WithFailedRank(
      absl::DeadlineExceededError(
          absl::StrCat(behind.size() == 1 ? "rank " : "ranks ",
                       absl::StrJoin(behind, ", "), " did not come in time")),
      behind.front());
}

absl::Status DeviceChannel::Fail(const Collective& call, absl::Status symptom) {
  return calls().Fail(call, std::move(symptom));
}

void DeviceChannel::Failed(const FlightTicket& ticket,
                           const absl::Status& status) {
  calls().End(ticket, status).IgnoreError();
}

void DeviceChannel::RunInBackground(std::function<void()> task) {
  options_.queue->Push([task = std::move(task)] {
    task();
    return absl::OkStatus();
  });
}

}  // namespace sherd::internal
