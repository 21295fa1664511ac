#include "sherd/testing/comms.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/backend_choice.h"
#include "sherd/core/comm/flight_recorder.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/testing/backend_availability.h"
#include "sherd/testing/exit_codes.h"
#include "sherd/testing/requirements.h"

namespace sherd::testing::internal {
namespace {

using ::sherd::internal::FlightEntry;
using ::sherd::internal::FlightGroup;
using ::sherd::internal::FlightRecorder;
using ::sherd::internal::FlightSnapshot;

constexpr char kCpu[] = "cpu";
constexpr char kCuda[] = "cuda";
constexpr char kAuto[] = "auto";
constexpr char kNccl[] = "nccl";
// Name of remote access among the users of a store; the group's is another.
constexpr char kRemoteAccess[] = "remote_access";
constexpr int kMaxGpus = 1024;

// The cpu part serves collectives on host memory; nccl has none.
bool NeedsCuda(const BackendChoice& choice) {
  return !choice.cuda.empty() || choice.cpu == kNccl;
}

absl::Status CheckDevice(const WithComms& comms, const BackendChoice& choice) {
  if (comms.device != kCpu && comms.device != kCuda) {
    return absl::InvalidArgumentError(absl::StrCat(
        "WithComms: device \"", comms.device, "\", expected cpu or cuda"));
  }
  if (comms.device == kCpu && NeedsCuda(choice)) {
    return absl::InvalidArgumentError(
        absl::StrCat("WithComms: backend ", choice.text,
                     " needs GPUs, and device is \"cpu\""));
  }
  return absl::OkStatus();
}

absl::Status CheckKind(const BackendInfo& backend, RanksAre ranks) {
  if (backend.ranks_are_threads == (ranks == RanksAre::kThreads)) {
    return absl::OkStatus();
  }
  if (backend.ranks_are_threads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "backend ", backend.name,
        ": its ranks are threads, and those of this test are processes; "
        "derive the fixture from sherd::testing::ThreadedDistributedTest"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "backend ", backend.name,
      ": its ranks are processes, and those of this test are threads; derive "
      "the fixture from sherd::testing::DistributedTest, or use local"));
}

// One backend of the choice.
absl::StatusOr<BackendAvailability> Look(const std::string& name,
                                         RanksAre ranks) {
  if (name != kAuto) return FindAvailability(name);
  if (ranks == RanksAre::kThreads) {
    return absl::InvalidArgumentError(
        "backend auto chooses among those whose ranks are processes, and those "
        "of this test are threads; use local");
  }
  // What Init does.
  absl::StatusOr<BackendAvailability> shm = FindAvailability("shm");
  if (shm.ok() && !shm->skip) return shm;
  return FindAvailability("gloo");
}

// Whether an operation that this rank called on the group has not ended.
bool HasOutstanding(const ProcessGroup& group) {
  const FlightSnapshot flight = FlightRecorder::Global().Snapshot();
  std::set<uint32_t> ids;
  for (const FlightGroup& known : flight.groups) {
    if (known.alive && known.info.name == group.name() &&
        known.info.rank == group.rank()) {
      ids.insert(known.id);
    }
  }
  return flight.dropped > 0 ||
         std::any_of(flight.entries.begin(), flight.entries.end(),
                     [&ids](const FlightEntry& entry) {
                       return entry.outstanding() && ids.count(entry.group) > 0;
                     });
}

// What drives them, if there are any.
absl::StatusOr<DeviceRuntime*> FindGpus() {
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(DeviceType::kCuda));
  SHERD_RETURN_IF_ERROR(runtime->Probe());
  return runtime;
}

absl::StatusOr<int> GpusOfTarget() {
  SHERD_ASSIGN_OR_RETURN(const std::optional<int64_t> gpus,
                         GetIntKnob(Knob::kTestGpus, 0, kMaxGpus));
  return static_cast<int>(gpus.value_or(0));
}

// Fills in `plan` for a test with communication.
absl::Status PlanBackends(const WithComms& comms, const BackendChoice& choice,
                          RanksAre ranks, CommsPlan& plan) {
  for (const std::string& name : {choice.cpu, choice.cuda}) {
    if (name.empty()) continue;
    SHERD_ASSIGN_OR_RETURN(const BackendAvailability found, Look(name, ranks));
    if (found.backend != nullptr) {
      SHERD_RETURN_IF_ERROR(CheckKind(found.backend->info(), ranks));
      plan.needs_launcher |= found.backend->info().needs_launcher;
    }
    if (!plan.skip) plan.skip = found.skip;
  }
  if (!plan.skip && comms.device == kCuda) {
    if (absl::Status status = FindGpus().status(); !status.ok()) {
      plan.skip = {SkipReason::kNoCuda,
                   absl::StrCat("(", status.message(), ")")};
    }
  }
  if (!plan.skip && comms.init_rpc) plan.skip = RequiresRpc().Check(0);
  return absl::OkStatus();
}

}  // namespace

WithComms Complete(WithComms wanted, RanksAre ranks) {
  if (wanted.backend.empty()) {
    wanted.backend =
        ranks == RanksAre::kThreads
            ? "local"
            : GetKnobOr(Knob::kTestBackend,
                        GetKnobInfo(Knob::kTestBackend).default_text);
  }
  if (wanted.device.empty()) {
    const absl::StatusOr<BackendChoice> choice =
        BackendChoice::Parse(wanted.backend);
    wanted.device = choice.ok() && NeedsCuda(*choice) ? kCuda : kCpu;
  }
  return wanted;
}

absl::StatusOr<CommsPlan> PlanComms(const std::optional<WithComms>& wanted,
                                    int world_size, RanksAre ranks,
                                    const GpuHost& host) {
  CommsPlan plan;
  SHERD_ASSIGN_OR_RETURN(plan.gpus, GpusOfTarget());
  const auto look_at_gpus = [&] {
    plan.skip = SkipIfFewerGpus(plan.gpus, host);
  };
  if (!wanted) {
    look_at_gpus();
    return plan;
  }
  const WithComms comms = Complete(*wanted, ranks);
  SHERD_ASSIGN_OR_RETURN(const BackendChoice choice,
                         BackendChoice::Parse(comms.backend));
  SHERD_RETURN_IF_ERROR(CheckDevice(comms, choice));
  if (comms.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("WithComms: timeout ", absl::FormatDuration(comms.timeout),
                     ", expected above zero"));
  }
  if (comms.device == kCuda) plan.gpus = std::max(plan.gpus, world_size);
  look_at_gpus();
  SHERD_RETURN_IF_ERROR(PlanBackends(comms, choice, ranks, plan));
  return plan;
}

Comms::Comms(WithComms wanted, const CommsPlace& place)
    : wanted_(std::move(wanted)),
      place_(place),
      timeout_(std::min(wanted_.timeout, place.timeout * 3 / 4)) {}

Comms::~Comms() { TearDown(Leaving::kFailed).IgnoreError(); }

void Comms::Phase(absl::string_view phase) const {
  if (place_.on_phase) place_.on_phase(phase);
}

absl::StatusOr<std::unique_ptr<Comms>> Comms::SetUp(const WithComms& wanted,
                                                    const CommsPlace& place) {
  std::unique_ptr<Comms> comms(new Comms(Complete(wanted, place.ranks), place));
  if (comms->wanted_.device == kCuda) {
    SHERD_RETURN_IF_ERROR(comms->ChooseGpu());
  }
  if (wanted.init_rpc) SHERD_RETURN_IF_ERROR(comms->StartRemoteAccess());
  SHERD_RETURN_IF_ERROR(comms->InitGroup());
  comms->Phase("barrier after Init");
  SHERD_RETURN_IF_ERROR(
      Annotate(comms->group_->Barrier(), "barrier after Init"));
  return comms;
}

absl::Status Comms::ChooseGpu() {
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime, FindGpus());
  SHERD_ASSIGN_OR_RETURN(const int gpus, runtime->DeviceCount());
  return runtime->SetCurrentDevice(place_.rank % gpus);
}

absl::Status Comms::StartRemoteAccess() {
  Phase("remote access");
  if (place_.store == nullptr) {
    return absl::InvalidArgumentError(
        "WithComms: remote access needs a store that all ranks share");
  }
  SHERD_ASSIGN_OR_RETURN(
      remote_access_life_,
      ::sherd::internal::EnterLife(place_.store, kRemoteAccess, place_.rank,
                                   place_.world_size));
  absl::StatusOr<std::unique_ptr<RemoteAccess>> started =
      ::sherd::StartRemoteAccess({.rank = place_.rank,
                                  .world_size = place_.world_size,
                                  .store = remote_access_life_->store(),
                                  .timeout = timeout_});
  if (!started.ok()) {
    remote_access_life_->GiveUp(started.status());
    remote_access_life_.reset();
    return started.status();
  }
  remote_access_ = *std::move(started);
  return absl::OkStatus();
}

absl::Status Comms::InitGroup() {
  Phase("Init");
  SHERD_ASSIGN_OR_RETURN(
      group_,
      Init({.backend = wanted_.backend,
            .rank = place_.rank,
            .world_size = place_.world_size,
            .init_method = place_.init_method,
            .store = place_.init_method.empty() ? place_.store : nullptr,
            .timeout = timeout_}));
  return absl::OkStatus();
}

bool Comms::Serves(const WithComms& wanted) const {
  const WithComms complete = Complete(wanted, place_.ranks);
  return group_ != nullptr && group_->health().ok() &&
         remote_access_ == nullptr && !complete.init_rpc &&
         complete.backend == wanted_.backend &&
         complete.device == wanted_.device &&
         complete.timeout == wanted_.timeout;
}

absl::Status Comms::Barrier() {
  Phase("barrier");
  return group_->Barrier();
}

absl::Status Comms::EndRemoteAccess(bool graceful) {
  if (remote_access_ == nullptr) return absl::OkStatus();
  Phase("end of remote access");
  absl::Status status = remote_access_->Shutdown(graceful);
  if (!status.ok() && graceful) {
    remote_access_->Shutdown(/*graceful=*/false).IgnoreError();
  }
  remote_access_.reset();
  remote_access_life_->Leave();
  remote_access_life_.reset();
  return Annotate(std::move(status), "end of remote access");
}

absl::Status Comms::TearDown(Leaving leaving) {
  absl::Status status = EndRemoteAccess(leaving == Leaving::kTogether);
  if (group_ == nullptr) return status;
  Phase("Destroy");
  if (leaving == Leaving::kFailed && HasOutstanding(*group_)) {
    group_->Abort(
        WithFailedRank(absl::AbortedError(absl::StrCat(
                           "rank ", place_.rank, " ended its test early")),
                       place_.rank));
  }
  status.Update(group_->Destroy());
  group_.reset();
  return status;
}

}  // namespace sherd::testing::internal
