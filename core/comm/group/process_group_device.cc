// The device part of a group: how it comes about, is called and ends.

#include "sherd/core/comm/group/process_group_device.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/collective_queue.h"
#include "sherd/core/comm/channel/scoped_device.h"
#include "sherd/core/comm/channel/work_state.h"
#include "sherd/core/comm/collective/call_comparison.h"
#include "sherd/core/comm/collective/collective_call.h"
#include "sherd/core/comm/collective/emulation.h"
#include "sherd/core/comm/group/failure_board.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/core/tensor/device_runtime.h"

namespace sherd {
namespace {

using internal::CollectiveCall;
using internal::DeviceGroup;
using internal::FlightTicket;
using internal::ScopedDevice;

// How long a rank that leaves waits for the others to leave as well. What was
// sent to another host may still be on its way, from this rank's memory.
constexpr absl::Duration kLeave = absl::Seconds(1);
constexpr absl::Duration kLeaveOtherHosts = absl::Seconds(10);
constexpr char kLeavingKey[] = "device/leaving";
// Between two looks at how many have come.
constexpr absl::Duration kLongestPause = absl::Milliseconds(50);

absl::StatusOr<int64_t> HowManyLeave(Store& store) {
  SHERD_ASSIGN_OR_RETURN(
      const std::string count,
      store.Get(kLeavingKey, Deadline::After(absl::ZeroDuration())));
  int64_t leaving = 0;
  if (!absl::SimpleAtoi(count, &leaving)) {
    return absl::InternalError("the count of ranks that leave is no number");
  }
  return leaving;
}

// A status as ranks tell each other: code and text.
std::string StatusToText(const absl::Status& status) {
  return absl::StrCat(static_cast<int>(status.code()), "\n", status.message());
}

absl::Status StatusFromText(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> fields =
      absl::StrSplit(text, absl::MaxSplits('\n', 1));
  int code = 0;
  if (!absl::SimpleAtoi(fields.first, &code)) {
    return absl::InternalError("told something that nobody can read");
  }
  return absl::Status(static_cast<absl::StatusCode>(code), fields.second);
}

// The first that is not OK, as all ranks say it.
absl::Status FirstError(absl::Span<const absl::Status> statuses) {
  for (size_t r = 0; r < statuses.size(); ++r) {
    if (statuses[r].ok()) continue;
    return WithRank(
        absl::Status(statuses[r].code(),
                     absl::StrCat("rank ", r, ": ", statuses[r].message())),
        static_cast<int>(r));
  }
  return absl::OkStatus();
}

}  // namespace

ProcessGroup::DeviceOrigin::~DeviceOrigin() {
  if (split == nullptr) return;
  const absl::StatusOr<DeviceRuntime*> runtime =
      DeviceRuntime::For(device.type);
  if (!runtime.ok()) return;
  const ScopedDevice current(**runtime, device);
  split.reset();
}

std::string ProcessGroup::DeviceFacts::ToString() const {
  return absl::StrCat(static_cast<int>(source), "\n", library_version, "\n",
                      device, "\n", device_id, "\n", StatusToText(status));
}

ProcessGroup::DeviceFacts ProcessGroup::DeviceFacts::Parse(
    absl::string_view text) {
  DeviceFacts facts;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(text, absl::MaxSplits('\n', 4));
  int source = 0;
  if (fields.size() != 5 || !absl::SimpleAtoi(fields[0], &source) ||
      !absl::SimpleAtoi(fields[2], &facts.device)) {
    facts.status = absl::InternalError("told something that nobody can read");
    return facts;
  }
  facts.source = static_cast<Source>(source);
  facts.library_version = std::string(fields[1]);
  facts.device_id = std::string(fields[3]);
  facts.status = StatusFromText(fields[4]);
  return facts;
}

std::optional<Device> ProcessGroup::device() const {
  if (!is_member() || options_.device_backend == nullptr) return std::nullopt;
  return options_.device;
}

const BackendInfo* ProcessGroup::device_backend() const {
  return options_.device_backend == nullptr ? nullptr
                                            : &options_.device_backend->info();
}

ProcessGroup::DeviceFacts ProcessGroup::FindDeviceFacts(
    const DeviceOrigin& origin) const {
  DeviceFacts facts;
  facts.source = origin.split != nullptr    ? DeviceFacts::Source::kSplit
                 : origin.parent != nullptr ? DeviceFacts::Source::kShrink
                                            : DeviceFacts::Source::kAnew;
  facts.library_version = device_backend()->library_version;
  const absl::StatusOr<DeviceRuntime*> runtime =
      DeviceRuntime::For(options_.device.type);
  if (!runtime.ok()) {
    facts.status = runtime.status();
    return facts;
  }
  const absl::StatusOr<Device> resolved =
      DeviceRuntime::Resolve(options_.device);
  if (!resolved.ok()) {
    facts.status = resolved.status();
    return facts;
  }
  const absl::StatusOr<DeviceProperties> properties =
      (*runtime)->Properties(resolved->index);
  facts.status = properties.status();
  facts.device = resolved->index;
  if (properties.ok()) facts.device_id = properties->bus_id;
  return facts;
}

absl::StatusOr<std::vector<absl::Status>> ProcessGroup::TellOutcome(
    absl::string_view step, const absl::Status& own, Deadline deadline) {
  SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> told,
                         board_->Exchange(step, StatusToText(own), deadline));
  std::vector<absl::Status> outcomes;
  for (const std::string& text : told) {
    outcomes.push_back(StatusFromText(text));
  }
  return outcomes;
}

absl::Status ProcessGroup::ConnectDevice(Deadline deadline,
                                         DeviceOrigin& origin) {
  if (options_.device_backend == nullptr) return absl::OkStatus();
  const auto part = [this](absl::Status status) {
    return Annotate(std::move(status),
                    absl::StrCat("the ", Name(options_.device.type), " part, ",
                                 device_backend()->name));
  };
  const DeviceFacts own = FindDeviceFacts(origin);
  const absl::StatusOr<std::vector<std::string>> told =
      board_->Exchange("device_facts", own.ToString(), deadline);
  if (!told.ok()) return part(told.status());
  std::vector<DeviceFacts> facts;
  std::vector<absl::Status> statuses;
  for (const std::string& text : *told) {
    facts.push_back(DeviceFacts::Parse(text));
    statuses.push_back(facts.back().status);
  }
  SHERD_RETURN_IF_ERROR(part(FirstError(statuses)));
  std::vector<std::optional<std::string>> versions;
  for (const DeviceFacts& fact : facts) {
    versions.push_back(absl::StrCat("\"", fact.library_version, "\""));
  }
  if (const internal::Deviation deviation = internal::FindDeviation(versions);
      deviation.Exists()) {
    const absl::Status status = absl::FailedPreconditionError(absl::StrCat(
        deviation.ToText("loaded", [&](int r) { return *versions[r]; }),
        ", expected one version of the vendor's library on all ranks"));
    const std::optional<int> failed = deviation.Rank();
    return part(failed ? WithFailedRank(status, *failed) : status);
  }
  CommunicatorOptions options = OptionsForCommunicator(deadline);
  options.device = options_.device.index;
  options.device_id = facts[rank()].device_id;
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(options_.device.type));
  const ScopedDevice current(*runtime, options_.device);
  absl::StatusOr<std::unique_ptr<Communicator>> made =
      MakeDeviceCommunicator(std::move(options), origin, facts);
  if (!made.ok()) return part(made.status());
  device_owner_ = std::make_unique<DeviceOwner>(*this);
  absl::StatusOr<std::shared_ptr<DeviceGroup>> opened =
      DeviceGroup::Create({.runtime = runtime,
                           .device = options_.device,
                           .rank = rank(),
                           .size = size(),
                           .native = device_backend()->native,
                           .communicator = *std::move(made)},
                          *device_owner_, tag_->recorder());
  const absl::StatusOr<std::vector<absl::Status>> outcomes =
      TellOutcome("device_opened", opened.status(), deadline);
  absl::Status status =
      outcomes.ok() ? FirstError(*outcomes) : outcomes.status();
  if (status.ok()) {
    device_ = *std::move(opened);
    for (const DeviceFacts& one : facts) {
      devices_.emplace_back(options_.device.type, one.device);
    }
    return status;
  }
  if (opened.ok()) (*opened)->Close([] { return false; }, deadline);
  return part(std::move(status));
}

absl::StatusOr<std::unique_ptr<Communicator>>
ProcessGroup::MakeDeviceCommunicator(CommunicatorOptions options,
                                     DeviceOrigin& origin,
                                     absl::Span<const DeviceFacts> facts) {
  const auto all_have = [facts](DeviceFacts::Source source) {
    return std::all_of(
        facts.begin(), facts.end(),
        [source](const DeviceFacts& one) { return one.source == source; });
  };
  if (all_have(DeviceFacts::Source::kSplit)) return std::move(origin.split);
  // With the device current: what is not of use goes now.
  origin.split.reset();
  const Deadline deadline = options.deadline;
  if (all_have(DeviceFacts::Source::kShrink)) {
    absl::StatusOr<std::unique_ptr<Communicator>> shrunk =
        origin.parent->Shrink(options, origin.excluded);
    SHERD_ASSIGN_OR_RETURN(
        const std::vector<absl::Status> outcomes,
        TellOutcome("device_shrunk", shrunk.status(), deadline));
    if (FirstError(outcomes).ok()) return shrunk;
    SHERD_LOG(kDebug) << "group \"" << name()
                      << "\" connects its devices anew: "
                      << FirstError(outcomes).message();
  }
  absl::Status allowed = Pass(FaultPoint::kBeforeConnecting, name());
  absl::StatusOr<std::unique_ptr<Communicator>> made =
      allowed.ok() ? options_.device_backend->CreateCommunicator(options)
                   : std::move(allowed);
  SHERD_ASSIGN_OR_RETURN(const std::vector<absl::Status> outcomes,
                         TellOutcome("device_made", made.status(), deadline));
  // Returned as the rank's own where it knows which rank failed.
  if (!made.ok() && ErrorRank(made.status())) return made.status();
  SHERD_RETURN_IF_ERROR(FirstError(outcomes));
  return made;
}

void ProcessGroup::SplitDevice(const ProcessGroupOptions& child,
                               const SplitChoice& split, DeviceOrigin& origin) {
  CommunicatorOptions options;
  options.group = child.name;
  options.rank = std::max(child.rank, 0);
  options.size = child.rank < 0 ? 1 : child.size;
  origin.store = child.store;
  options.store = child.store.get();
  options.deadline = Deadline::After(child.timeout);
  options.world_ranks = child.world_ranks;
  options.world_size = child.world_size;
  options.one_host = one_host_;
  if (!options_.bind_address.empty()) options.address = options_.bind_address;
  options.device = options_.device.index;
  if (const auto properties =
          device_->runtime().Properties(options_.device.index);
      properties.ok()) {
    options.device_id = properties->bus_id;
  }
  // Nothing is under way on this rank.
  if (!device_->Synchronize().ok()) return;
  absl::StatusOr<std::unique_ptr<Communicator>> made =
      device_->Split(options, split.color, split.key);
  if (made.ok()) {
    origin.device = options_.device;
    origin.split = *std::move(made);
  } else {
    SHERD_LOG(kDebug) << "group \"" << child.name
                      << "\" connects its devices anew: "
                      << made.status().message();
  }
}

absl::Duration ProcessGroup::LeaveTime() const {
  return std::min(one_host_ ? kLeave : kLeaveOtherHosts, options_.timeout);
}

bool ProcessGroup::AllLeave() {
  const Deadline deadline = Deadline::After(LeaveTime());
  absl::StatusOr<int64_t> leaving = store().Add(kLeavingKey, 1);
  bool lost = false;
  absl::Duration pause = absl::Milliseconds(2);
  while (leaving.ok() && *leaving < size()) {
    if (lost || deadline.HasPassed()) return false;
    // Whoever misses this rank fails, and stays.
    if (comparison_ != nullptr && comparison_->FailedRank()) return false;
    lost = board_->FindLost().has_value();
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestPause);
    // Once more also then: a rank counts itself before its process ends.
    leaving = HowManyLeave(store());
  }
  return leaving.ok();
}

void ProcessGroup::CloseDevice() {
  bool poisoned;
  {
    absl::MutexLock lock(&state_mutex_);
    poisoned = !poison_.ok();
  }
  device_->Close([&] { return !poisoned && AllLeave(); },
                 Deadline::After(LeaveTime()));
}

absl::Status ProcessGroup::AdmitOnDevice(const CollectiveCall& call,
                                         const Device& device) const {
  const Collective& desc = call.desc;
  if (!is_member()) return Admit(call);
  const auto invalid = [&](const auto&... text) {
    return Describe(desc, absl::InvalidArgumentError(absl::StrCat(text...)));
  };
  if (device_ == nullptr) {
    return invalid("the buffers are on ", device.ToString(),
                   ", and the group works on host memory only: copy them to "
                   "the host, or Init with a backend for their device, such "
                   "as \"cpu:auto,cuda:nccl\"");
  }
  const Device& own = options_.device;
  if (!SameDevice(device, own)) {
    return invalid("the buffers are on ", device.ToString(),
                   ", expected cpu or ", own.ToString(),
                   ", this rank's device in the group");
  }
  if (!call.valid.ok()) return Describe(desc, call.valid);
  if (PathOf(desc.op, desc.dtype, desc.reduction, own.type) ==
      OperationPath::kUnsupported) {
    return Describe(
        desc, absl::UnimplementedError(absl::StrCat(
                  "backend ", device_backend()->name, " has no ", Name(desc.op),
                  " and nothing from which it could be made")));
  }
  return CheckBuffers(desc, own);
}

absl::Status ProcessGroup::CheckBuffers(const Collective& desc,
                                        const Device& place) const {
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(options_.device.type));
  const auto check = [&](const void* data, size_t bytes) -> absl::Status {
    if (data == nullptr || bytes == 0) return absl::OkStatus();
    const absl::StatusOr<std::optional<Device>> found = runtime->Locate(data);
    if (!found.ok()) {
      // A device that broke is no concern of the host's part.
      return place.is_cpu() ? absl::OkStatus() : Describe(desc, found.status());
    }
    const Device at = found->value_or(Device());
    if (at == place) return absl::OkStatus();
    return Describe(desc, absl::InvalidArgumentError(absl::StrCat(
                              "a buffer is in the memory of ", at.ToString(),
                              ", expected ", place.ToString(),
                              ": CollectiveOptions::device says where all "
                              "buffers of a call are")));
  };
  SHERD_RETURN_IF_ERROR(check(desc.in, desc.bytes));
  SHERD_RETURN_IF_ERROR(check(desc.out, desc.bytes));
  for (const ConstBytes& block : desc.sends) {
    SHERD_RETURN_IF_ERROR(check(block.data(), block.size()));
  }
  for (const MutableBytes& block : desc.recvs) {
    SHERD_RETURN_IF_ERROR(check(block.data(), block.size()));
  }
  return absl::OkStatus();
}

absl::Status ProcessGroup::RunOnDevice(
    CollectiveCall call, const CollectiveOptions& options,
    std::shared_ptr<internal::WorkState>* work) {
  SHERD_RETURN_IF_ERROR(AdmitOnDevice(call, options.device));
  internal::SetType(options.dtype, call);
  call.desc.deadline = DeadlineOf(options);
  call.desc.on_device = true;
  if (device_->IsInBatch()) {
    if (work != nullptr) {
      return Describe(call.desc,
                      absl::FailedPreconditionError(
                          "an asynchronous call in a batch: make all calls of "
                          "it in their synchronous forms"));
    }
    return QueueOnDevice(call.desc, nullptr);
  }
  device_->Reclaim();
  absl::MutexLock lock(&device_->call_mutex());
  return QueueOnDevice(call.desc, work);
}

Work ProcessGroup::StartOnDevice(CollectiveCall call,
                                 const CollectiveOptions& options) {
  std::shared_ptr<internal::WorkState> work;
  absl::Status status = RunOnDevice(std::move(call), options, &work);
  if (work == nullptr) return Work(std::move(status));
  return Work(std::move(work));
}

absl::Status ProcessGroup::QueueOnDevice(
    Collective desc, std::shared_ptr<internal::WorkState>* work) {
  if (!usable_.load(std::memory_order_acquire)) return Refusal(desc);
  if (absl::Status status = device_->Admit(desc); !status.ok()) {
    return Describe(desc, std::move(status));
  }
  desc.sequence = (IsPointToPoint(desc.op) ? messages_ : sequence_)
                      .fetch_add(1, std::memory_order_relaxed) +
                  1;
  if (desc.even) ListEvenBlocks(desc, device_blocks_);
  const FlightTicket ticket = Record(desc, /*started=*/true);
  absl::Status status = CarryOnDevice(desc, ticket, work);
  if (status.ok()) {
    batched_ = desc;
    return status;
  }
  return Conclude(ticket, Poison(desc, std::move(status)));
}

absl::Status ProcessGroup::CarryOnDevice(
    const Collective& desc, const FlightTicket& ticket,
    std::shared_ptr<internal::WorkState>* work) {
  if (!IsPointToPoint(desc.op)) {
    SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kBeforeComparison, desc));
    if (comparison_ != nullptr) {
      SHERD_RETURN_IF_ERROR(comparison_->Compare(
          desc,
          [](absl::Span<const ConstBytes>,
             absl::Span<const MutableBytes>) -> absl::Status {
            return absl::InternalError("calls on devices send no lines");
          }));
    }
  }
  SHERD_RETURN_IF_ERROR(Pass(FaultPoint::kBeforePost, desc));
  if (work == nullptr) {
    SHERD_RETURN_IF_ERROR(device_->Queue(desc, ticket));
  } else {
    SHERD_ASSIGN_OR_RETURN(*work, device_->QueueAside(desc, ticket));
  }
  // Its ticket is ended by the device part.
  Pass(FaultPoint::kAfterPost, desc).IgnoreError();
  return absl::OkStatus();
}

absl::Status ProcessGroup::Synchronize() {
  if (device_ == nullptr) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(device_->Synchronize());
  absl::MutexLock lock(&state_mutex_);
  return poison_;
}

absl::Status ProcessGroup::Batch(absl::FunctionRef<absl::Status()> calls) {
  const auto refuse = [this](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat(
        "group \"", name(), "\", rank ", rank(), ", batch: ", why));
  };
  if (device_ == nullptr) {
    return refuse(is_member() ? "the group has no device part"
                              : "this process is not a member of the group");
  }
  if (device_->IsInBatch()) return refuse("there is one under way already");
  device_->Reclaim();
  absl::MutexLock lock(&device_->call_mutex());
  if (!usable_.load(std::memory_order_acquire)) {
    return refuse(health().message());
  }
  batched_ = Collective();
  batched_.on_device = true;
  if (absl::Status status = device_->BeginBatch(); !status.ok()) {
    return refuse(status.message());
  }
  absl::Status status = calls();
  absl::Status ended = device_->EndBatch(/*keep=*/status.ok());
  if (status.ok() && ended.ok()) return status;
  if (status.ok()) return Poison(batched_, std::move(ended));
  // What was called before, others may wait for.
  if (batched_.sequence != 0 && usable_.load(std::memory_order_acquire)) {
    // Whatever it is, no difference between the ranks' calls.
    Poison(batched_, absl::IsInvalidArgument(status)
                         ? absl::CancelledError(status.message())
                         : status)
        .IgnoreError();
  }
  return status;
}

absl::StatusOr<Allocator*> ProcessGroup::DeviceAllocator() const {
  if (!device()) {
    return absl::FailedPreconditionError(
        absl::StrCat("group \"", name(), "\" has no device part"));
  }
  Allocator* const own =
      options_.device_backend->device_allocator(options_.device.index);
  if (own != nullptr) return own;
  return DeviceRuntime::AllocatorFor(options_.device);
}

absl::StatusOr<std::shared_ptr<const void>> ProcessGroup::Register(
    MutableBytes buffer) {
  if (device_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("group \"", name(), "\" has no device part"));
  }
  return device_->Register(buffer);
}

absl::Status ProcessGroup::DeviceOwner::Trouble() {
  if (!group_.usable_.load(std::memory_order_acquire)) {
    return absl::AbortedError("the group was aborted");
  }
  if (group_.comparison_ == nullptr) return absl::OkStatus();
  const std::optional<int> failed = group_.comparison_->FailedRank();
  // This rank's own failure is on its way to everybody.
  if (!failed || *failed == group_.rank()) return absl::OkStatus();
  return WithFailedRank(absl::UnavailableError("gave up"), *failed);
}

absl::Status ProcessGroup::DeviceOwner::LostRank(const Collective& call) {
  if (group_.comparison_ != nullptr) {
    const bool message = IsPointToPoint(call.op);
    const std::optional<int> left = group_.comparison_->RankThatLeft(
        message ? std::numeric_limits<uint64_t>::max() : call.sequence);
    if (left && (!message || *left == call.root)) {
      return WithFailedRank(absl::UnavailableError("left the group"), *left);
    }
  }
  const internal::FailureBoard& board = *group_.board_;
  for (int r = 0; r < group_.size(); ++r) {
    if (r == group_.rank()) continue;
    if (StateOf(board.process(r)) == ProcessState::kEnded) {
      return WithFailedRank(absl::UnavailableError("its process is gone"), r);
    }
  }
  // Those elsewhere can only say it themselves.
  if (group_.one_host_ || ++looks_ % 10 != 0) return absl::OkStatus();
  if (const std::optional<int> suspect = board.FirstSuspect()) {
    return WithFailedRank(absl::UnavailableError("gave up"), *suspect);
  }
  return absl::OkStatus();
}

absl::Status ProcessGroup::DeviceOwner::Late(const Collective& call) {
  if (IsPointToPoint(call.op)) {
    return WithFailedRank(absl::DeadlineExceededError("it did not end in time"),
                          call.root);
  }
  std::vector<int> behind;
  if (group_.comparison_ != nullptr) {
    behind = group_.comparison_->RanksBehind(call.sequence);
  }
  if (behind.empty()) {
    return absl::DeadlineExceededError(
        "it did not end in time on the device, though no rank is known to be "
        "late: what stands before it in the stream may not have ended");
  }
  return WithFailedRank(
      absl::DeadlineExceededError(
          absl::StrCat(behind.size() == 1 ? "rank " : "ranks ",
                       absl::StrJoin(behind, ", "), " did not come in time")),
      behind.front());
}

absl::Status ProcessGroup::DeviceOwner::Fail(const Collective& call,
                                             absl::Status symptom) {
  return group_.Poison(call, std::move(symptom));
}

void ProcessGroup::DeviceOwner::Failed(const FlightTicket& ticket,
                                       const absl::Status& status) {
  group_.Conclude(ticket, status).IgnoreError();
}

void ProcessGroup::DeviceOwner::RunAside(std::function<void()> task) {
  group_.queue_->Push([task = std::move(task)] {
    task();
    return absl::OkStatus();
  });
}

}  // namespace sherd
