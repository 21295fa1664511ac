// How a process becomes a member of a group, and ceases to be one.

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/collective_queue.h"
#include "sherd/core/comm/channel/device_group.h"
#include "sherd/core/comm/collective/call_comparison.h"
#include "sherd/core/comm/collective/emulation.h"
#include "sherd/core/comm/flight/flight_dump.h"
#include "sherd/core/comm/flight/flight_recorder.h"
#include "sherd/core/comm/flight/watchdog.h"
#include "sherd/core/comm/group/failure_board.h"
#include "sherd/core/comm/group/process_group_device.h"
#include "sherd/core/comm/group/survivors.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/store/watched_store.h"
#include "sherd/core/process/process_identity.h"

namespace sherd {
namespace {

using internal::CallComparison;
using internal::CollectiveQueue;
using internal::Emulation;
using internal::FailureBoard;
using internal::SurvivorAgreement;
using internal::WatchedStore;

constexpr char kNewGroup[] = "new_group";
constexpr char kShrink[] = "shrink";

// Fills in what may be left out.
ProcessGroupOptions Completed(ProcessGroupOptions options) {
  if (options.world_ranks.empty()) {
    options.world_ranks.resize(options.size);
    std::iota(options.world_ranks.begin(), options.world_ranks.end(), 0);
    options.world_size = options.size;
  }
  return options;
}

absl::Status CheckRanks(absl::Span<const int> ranks, int size) {
  if (ranks.empty()) {
    return absl::InvalidArgumentError("the list of ranks is empty");
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", ranks[i], " is out of range, expected 0 to ",
                       size - 1, ", ranks of this group"));
    }
    if (i == 0 || ranks[i - 1] < ranks[i]) continue;
    return absl::InvalidArgumentError(
        ranks[i - 1] == ranks[i]
            ? absl::StrCat("rank ", ranks[i], " is named twice")
            : absl::StrCat("rank ", ranks[i], " stands after rank ",
                           ranks[i - 1],
                           ", expected ascending order; Split makes groups in "
                           "another order"));
  }
  return absl::OkStatus();
}

// Names a list of ranks: as it is if that is short, else by size and hash.
std::string Label(absl::Span<const int> ranks) {
  std::string list = absl::StrJoin(ranks, ",");
  if (list.size() <= 32) return list;
  // FNV-1a: the same in every process.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : list) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return absl::StrCat(ranks.size(), "ranks-", absl::Hex(hash));
}

}  // namespace

ProcessGroup::ProcessGroup(const Backend& backend, ProcessGroupOptions options)
    : options_(Completed(std::move(options))),
      backend_(backend),
      backend_info_(backend.info()),
      board_(is_member() ? std::make_unique<FailureBoard>(
                               options_.store, options_.rank, options_.size,
                               options_.processes)
                         : nullptr),
      meeting_(is_member()
                   ? std::make_unique<WatchedStore>(
                         *options_.store, [this] { return board_->FindLost(); })
                   : nullptr),
      tag_(is_member()
               ? std::make_unique<internal::GroupTag>(internal::FlightGroupInfo{
                     .name = options_.name,
                     .backend = backend_info_.name,
                     .rank = options_.rank,
                     .size = options_.size,
                     .world_ranks = options_.world_ranks,
                     .device = options_.device_backend == nullptr
                                   ? ""
                                   : options_.device.ToString(),
                     .device_backend =
                         options_.device_backend == nullptr
                             ? ""
                             : options_.device_backend->info().name})
               : nullptr),
      peers_(2 * options_.size),
      queue_(std::make_unique<CollectiveQueue>()) {}

ProcessGroup::~ProcessGroup() {
  if (device_ != nullptr && !IsDestroyed()) {
    SHERD_LOG(kWarning) << "group \"" << name()
                        << "\" was not destroyed: what it has on "
                        << options_.device.ToString() << " stays behind";
    device_->Abandon();
  }
  Destroy().IgnoreError();
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Create(
    const Backend& backend, ProcessGroupOptions options) {
  DeviceOrigin origin;
  return Create(backend, std::move(options), "init", origin);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Create(
    const Backend& backend, ProcessGroupOptions options,
    absl::string_view operation, DeviceOrigin& origin) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of world size ", options.size,
                     ": expected 0 <= rank < world size"));
  }
  const Deadline deadline =
      options.join_deadline.value_or(Deadline::After(options.timeout));
  auto group = absl::WrapUnique(new ProcessGroup(backend, std::move(options)));
  absl::Status status = group->Connect(deadline);
  if (status.ok()) {
    status = group->ConnectDevice(deadline, origin);
    // For those who still wait for this rank.
    if (!status.ok()) group->board_->Report(status, ErrorRank(status));
  }
  if (!status.ok()) {
    if (const std::optional<int> failed = FailedRank(status)) {
      group->tag_->SetFailedRank(group->world_ranks()[*failed]);
      group->DumpOnce(internal::FlightReason::kPoisoned, status.message());
    }
    // It never was a member: it neither leaves the group, which might be that
    // of another process with the same rank, nor retires from its store.
    {
      absl::MutexLock lock(&group->state_mutex_);
      group->destroyed_ = true;
    }
    return group->Describe(operation, 0, group->WithJobRank(std::move(status)));
  }
  group->watch_ = internal::Watchdog::Global().Add(
      *group->tag_, [member = group.get()](absl::Status cause) {
        member->Abort(std::move(cause));
      });
  return std::shared_ptr<ProcessGroup>(std::move(group));
}

absl::StatusOr<ProcessGroup::CallCheck> ProcessGroup::GetCallCheck() {
  const std::string value = GetKnobOr(Knob::kCheckCalls, "auto");
  if (value == "auto") return CallCheck::kAuto;
  if (value == "message") return CallCheck::kMessage;
  if (value == "off") return CallCheck::kOff;
  return absl::InvalidArgumentError(absl::StrCat(
      "environment variable ", GetKnobInfo(Knob::kCheckCalls).variable,
      " is \"", value, "\", expected auto, message or off"));
}

absl::Status ProcessGroup::Connect(Deadline deadline) {
  SHERD_ASSIGN_OR_RETURN(const CallCheck check, GetCallCheck());
  SHERD_RETURN_IF_ERROR(board_->Join(deadline));
  one_host_ = board_->OneHost();
  host_of_rank_ = board_->HostOfRank();
  if (backend_info_.one_host_only && !one_host_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the ranks run on several hosts, but backend ", backend_info_.name,
        " connects ranks of one host only: use gloo or mpi"));
  }
  if (size() == 1) return absl::OkStatus();
  // Before the connection, which waits for all ranks.
  absl::Status status = MakeComparison(check, deadline);
  if (status.ok()) {
    emulation_ =
        std::make_unique<Emulation>(backend_info_.native, rank(), size());
    status = MakeCommunicator(deadline);
  }
  if (status.ok()) return status;
  // Whom the backend waited for then may itself have waited.
  const std::optional<int> lost = meeting_->lost();
  const std::optional<int> peer =
      lost && absl::IsUnavailable(status) ? lost : ErrorRank(status);
  board_->Report(status, peer);
  return Annotate(FindCause(peer, std::move(status)),
                  absl::StrCat("backend ", backend_info_.name));
}

// Where the backend does not compare calls itself, the host does, and with a
// device part always.
absl::Status ProcessGroup::MakeComparison(CallCheck check, Deadline deadline) {
  const bool on_devices = device().has_value();
  const bool on_host = !backend_info_.compares_calls &&
                       backend_info_.native.Has(CollectiveOp::kAllToAllV);
  if (check == CallCheck::kOff || !(on_host || on_devices)) {
    return absl::OkStatus();
  }
  if (one_host_ && check == CallCheck::kAuto) {
    SHERD_ASSIGN_OR_RETURN(
        comparison_,
        CallComparison::OnBoard(*meeting_, rank(), size(), deadline));
    comparison_->WatchRanks([this] { return board_->FindLost().has_value(); });
    if (on_devices) comparison_->ExpectDeviceCalls();
  } else if (on_host) {
    comparison_ = CallComparison::ByMessages(rank(), size());
  }
  return absl::OkStatus();
}

CommunicatorOptions ProcessGroup::OptionsForCommunicator(
    Deadline deadline) const {
  CommunicatorOptions options = {.group = name(),
                                 .rank = rank(),
                                 .size = size(),
                                 .store = meeting_.get(),
                                 .deadline = deadline,
                                 .world_ranks = options_.world_ranks,
                                 .world_size = options_.world_size,
                                 .one_host = one_host_};
  if (!options_.bind_address.empty()) options.address = options_.bind_address;
  return options;
}

absl::Status ProcessGroup::MakeCommunicator(Deadline deadline) {
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kBeforeConnecting, name()));
  SHERD_ASSIGN_OR_RETURN(communicator_, backend_.CreateCommunicator(
                                            OptionsForCommunicator(deadline)));
  {
    absl::MutexLock lock(&state_mutex_);
    peer_memory_ = communicator_->peer_memory();
  }
  return Pass(FaultPoint::kAfterConnecting, name());
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::NewGroup(
    absl::Span<const int> ranks, const NewGroupOptions& options) {
  if (absl::Status status = CheckRanks(ranks, size()); !status.ok()) {
    return Describe(kNewGroup, 0, std::move(status));
  }
  SHERD_RETURN_IF_ERROR(CheckParent(kNewGroup, options));
  return MakeChild({.operation = kNewGroup,
                    .ranks = {ranks.begin(), ranks.end()},
                    .label = CountedLabel(ranks)},
                   options);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Split(
    int color, int key, const NewGroupOptions& options) {
  // The third: whether this rank's device part can be split with the others'.
  using Choice = std::array<int64_t, 3>;
  const Choice own = {color, key, device_ != nullptr ? 1 : 0};
  std::vector<Choice> choices(size());
  SHERD_RETURN_IF_ERROR(AllGather(
      ConstBytes(reinterpret_cast<const std::byte*>(own.data()), sizeof(own)),
      MutableBytes(reinterpret_cast<std::byte*>(choices.data()),
                   choices.size() * sizeof(Choice))));
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r) {
    if (choices[r][0] == color) ranks.push_back(r);
  }
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int a, int b) { return choices[a][1] < choices[b][1]; });
  const bool has_devices =
      std::all_of(choices.begin(), choices.end(),
                  [](const Choice& choice) { return choice[2] != 0; });
  const SplitChoice split = {color, key, has_devices};
  SHERD_RETURN_IF_ERROR(CheckParent(kNewGroup, options));
  std::string label = CountedLabel(ranks);
  return MakeChild({.operation = kNewGroup,
                    .ranks = std::move(ranks),
                    .label = std::move(label),
                    .split = &split},
                   options);
}

absl::Status ProcessGroup::CheckParent(absl::string_view operation,
                                       const NewGroupOptions& options) const {
  if (!is_member()) {
    return Describe(operation, 0,
                    absl::FailedPreconditionError(
                        "this process is not a member of the group"));
  }
  if (device_ != nullptr && device_->IsInBatch()) {
    return Describe(operation, 0,
                    absl::FailedPreconditionError(
                        "called within a batch of the group: end it before"));
  }
  if (options.timeout && *options.timeout <= absl::ZeroDuration()) {
    return Describe(operation, 0,
                    absl::InvalidArgumentError(
                        absl::StrCat("timeout must be above zero, found ",
                                     absl::FormatDuration(*options.timeout))));
  }
  if (!IsDestroyed()) return absl::OkStatus();
  return Describe(operation, 0,
                  absl::FailedPreconditionError("the group was destroyed"));
}

std::string ProcessGroup::CountedLabel(absl::Span<const int> ranks) {
  std::string label = Label(ranks);
  absl::MutexLock lock(&state_mutex_);
  absl::StrAppend(&label, "#", ++children_[label]);
  return label;
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::MakeChild(
    const ChildPlan& plan, const NewGroupOptions& options) {
  const std::vector<int>& ranks = plan.ranks;
  const SplitChoice* const split = plan.split;
  if (absl::Status status = Pass(FaultPoint::kNewGroup, name()); !status.ok()) {
    return Describe(plan.operation, 0, std::move(status));
  }
  ProcessGroupOptions child;
  child.name = absl::StrCat(name(), "/", plan.label);
  child.size = static_cast<int>(ranks.size());
  const auto place = std::find(ranks.begin(), ranks.end(), rank());
  const bool member = split == nullptr || split->color >= 0;
  child.rank = member && place != ranks.end()
                   ? static_cast<int>(place - ranks.begin())
                   : -1;
  for (const int r : ranks) {
    child.world_ranks.push_back(options_.world_ranks[r]);
    child.processes.push_back(board_->process(r));
  }
  child.world_size = options_.world_size;
  child.timeout = options.timeout.value_or(options_.timeout);
  child.bind_address = options_.bind_address;
  child.join_deadline = plan.join_deadline;
  const std::string prefix = absl::StrCat("groups/", plan.label);
  child.store = std::make_shared<PrefixStore>(prefix, options_.store);
  child.device_backend = options_.device_backend;
  child.device = options_.device;
  DeviceOrigin origin;
  if (split != nullptr && split->has_devices) {
    SplitDevice(child, *split, origin);
  } else if (device_ != nullptr && !usable_.load(std::memory_order_acquire)) {
    origin.parent = device_;
    for (int r = 0; r < size(); ++r) {
      if (std::find(ranks.begin(), ranks.end(), r) == ranks.end()) {
        origin.excluded.push_back(r);
      }
    }
  }
  if (child.rank < 0) {
    return absl::WrapUnique(new ProcessGroup(backend_, std::move(child)));
  }
  child.on_destroy = [store = options_.store, prefix, size = child.size] {
    if (absl::Status status = store->Retire(prefix, size); !status.ok()) {
      SHERD_LOG(kDebug) << "keys of " << prefix
                        << " stay behind: " << status.ToString();
    }
  };
  return Create(backend_, std::move(child), plan.operation, origin);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Shrink(
    const NewGroupOptions& options) {
  SHERD_RETURN_IF_ERROR(CheckParent(kShrink, options));
  const absl::Duration timeout = options.timeout.value_or(options_.timeout);
  const Deadline deadline = Deadline::After(timeout);
  absl::MutexLock lock(&shrink_mutex_);
  if (survivors_ == nullptr) {
    survivors_ = std::make_unique<SurvivorAgreement>(
        *options_.store, rank(), size(),
        SurvivorAgreement::Sight{
            .is_gone = [this](int r) { return board_->IsGone(r); },
            .is_stopped = [this](int r) { return board_->IsStopped(r); }});
  }
  std::optional<int> accused = FailedRank(health());
  for (;;) {
    absl::StatusOr<std::shared_ptr<ProcessGroup>> group =
        ShrinkOnce(options, deadline, accused);
    if (!group.ok() || *group != nullptr) return group;
    if (!deadline.HasPassed()) continue;
    absl::Status late = absl::DeadlineExceededError(absl::StrCat(
        "no group of the ranks that are left was established within ",
        absl::FormatDuration(timeout)));
    if (accused) late = WithFailedRank(std::move(late), *accused);
    return Describe(kShrink, 0, WithJobRank(std::move(late)));
  }
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::ShrinkOnce(
    const NewGroupOptions& options, Deadline deadline,
    std::optional<int>& accused) {
  const auto store_failed = [this](const absl::Status& status) {
    absl::Status lost(
        status.code(),
        absl::StrCat("the store in which the ranks that are left agree does "
                     "not answer (that of tcp:// and env:// ends with the "
                     "process of rank 0 of the job): start the job again, or "
                     "let ranks meet at a file:// that outlives them: ",
                     status.message()));
    if (world_ranks()[0] == 0 && rank() != 0 &&
        StateOf(board_->process(0)) != ProcessState::kRunning) {
      lost = WithFailedRank(std::move(lost), 0);
    }
    return Describe(kShrink, 0, std::move(lost));
  };
  const absl::StatusOr<std::vector<int>> members =
      survivors_->AgreeOnMembers(accused, deadline);
  if (!members.ok()) return store_failed(members.status());
  LeaveOut(*members);
  if (std::find(members->begin(), members->end(), rank()) == members->end()) {
    return Describe(
        kShrink, 0,
        WithFailedRank(
            absl::FailedPreconditionError(absl::StrCat(
                "this rank was left out: it came too late, or most of the "
                "others' errors call it failed; ",
                internal::RankList(*members), " of the group ",
                members->size() == 1 ? "goes" : "go",
                " on without it: end this process, or start it as a rank of "
                "another job")),
            rank()));
  }
  absl::StatusOr<std::shared_ptr<ProcessGroup>> made =
      MakeChild({.operation = kShrink,
                 .ranks = *members,
                 .label = absl::StrCat(kShrink, "#", survivors_->round()),
                 .join_deadline = Deadline::After(deadline.Remaining() / 2)},
                options);
  const absl::StatusOr<bool> all_made =
      survivors_->AgreeOnOutcome(made.ok(), deadline);
  if (all_made.ok() && *all_made) return made;
  if (made.ok()) {
    (*made)->Abort(absl::AbortedError("another rank failed meanwhile"));
    (*made)->Destroy().IgnoreError();
  }
  if (!all_made.ok()) return store_failed(all_made.status());
  accused.reset();
  if (made.ok()) return nullptr;
  const std::optional<int> failed = FailedRank(made.status());
  if (!failed || (*members)[*failed] == rank()) return made;
  accused = (*members)[*failed];
  SHERD_LOG(kInfo) << "shrink goes on without a further rank: "
                   << made.status().message();
  return nullptr;
}

void ProcessGroup::LeaveOut(absl::Span<const int> members) {
  std::vector<int> left_out;
  for (int r = 0; r < size(); ++r) {
    if (std::find(members.begin(), members.end(), r) == members.end()) {
      left_out.push_back(r);
    }
  }
  if (left_out.empty()) return;
  const std::string text = absl::StrCat(internal::RankList(left_out),
                                        " failed; the others go on without");
  const int first = left_out.front();
  {
    absl::MutexLock lock(&state_mutex_);
    left_out_ = std::move(left_out);
  }
  if (usable_.load(std::memory_order_acquire)) {
    Abort(WithFailedRank(absl::UnavailableError(text), first));
  }
}

std::vector<int> ProcessGroup::FailedRanks() const {
  if (!is_member()) return {};
  std::set<int> failed;
  for (const int r : board_->EndedRanks()) failed.insert(r);
  absl::MutexLock lock(&state_mutex_);
  failed.insert(left_out_.begin(), left_out_.end());
  if (const std::optional<int> named = FailedRank(poison_)) {
    failed.insert(*named);
  }
  return {failed.begin(), failed.end()};
}

absl::Status ProcessGroup::Destroy() {
  if (IsDestroyed()) return absl::OkStatus();
  if (device_ != nullptr && device_->IsInBatch()) {
    return Describe("destroy", 0,
                    absl::FailedPreconditionError(
                        "called within a batch of the group: end it before"));
  }
  queue_->WaitIdle();
  std::vector<CollectiveQueue*> queues;
  {
    absl::MutexLock lock(&peers_mutex_);
    for (const auto& queue : peers_) {
      if (queue != nullptr) queues.push_back(queue.get());
    }
  }
  for (CollectiveQueue* const queue : queues) queue->WaitIdle();
  if (device_ != nullptr) device_->Synchronize().IgnoreError();
  {
    absl::MutexLock lock(&state_mutex_);
    if (destroyed_) return absl::OkStatus();
    destroyed_ = true;
    usable_.store(false, std::memory_order_release);
    peer_memory_ = nullptr;
  }
  Pass(FaultPoint::kDestroy, name()).IgnoreError();
  // Before the locks that ending an operation takes.
  watch_.Stop();
  if (comparison_ != nullptr) comparison_->Leave();
  if (device_ != nullptr) {
    CloseDevice();
    // What continues the Works that ended by that.
    queue_->WaitIdle();
  }
  if (is_member()) {
    absl::MutexLock running(&run_mutex_);
    absl::WriterMutexLock open(&open_mutex_);
    // Written before the connections close, so that a rank which still needs
    // this one can say what happened.
    board_->ReportLeaving();
    absl::MutexLock lock(&abort_mutex_);
    communicator_.reset();
  }
  if (options_.on_destroy) options_.on_destroy();
  return absl::OkStatus();
}

void ProcessGroup::Abort(absl::Status cause) {
  if (!is_member()) return;
  Pass(FaultPoint::kAbort, name()).IgnoreError();
  {
    absl::MutexLock lock(&state_mutex_);
    if (destroyed_) return;
    if (poison_.ok()) poison_ = cause;
    usable_.store(false, std::memory_order_release);
  }
  if (const std::optional<int> failed = FailedRank(cause)) {
    tag_->SetFailedRank(options_.world_ranks[*failed]);
  }
  board_->Report(cause, std::nullopt);
  {
    absl::MutexLock lock(&abort_mutex_);
    if (comparison_ != nullptr) comparison_->Fail();
    if (communicator_ != nullptr) communicator_->Abort();
    if (device_ != nullptr) device_->Abort();
  }
  DumpOnce(internal::FlightReason::kAbort, cause.message());
}

}  // namespace sherd
