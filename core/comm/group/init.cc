#include "sherd/core/comm/init.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/bootstrap/backend_agreement.h"
#include "sherd/core/comm/bootstrap/backend_choice.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/bootstrap/host_address.h"
#include "sherd/core/comm/bootstrap/init_method.h"
#include "sherd/core/comm/bootstrap/launch_environment.h"
#include "sherd/core/comm/bootstrap/meeting.h"
#include "sherd/core/comm/bootstrap/rendezvous.h"
#include "sherd/core/comm/group/failure_log.h"
#include "sherd/core/comm/group/membership.h"
#include "sherd/core/comm/group/membership_exchange.h"
#include "sherd/core/comm/group/process_group_impl.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"

namespace sherd {
namespace {

using internal::BackendAgreement;
using internal::BackendRequest;
using internal::MeetingPlace;
using internal::Membership;
using internal::Rendezvous;

constexpr char kAuto[] = "auto";
// How long a rank that cannot take part tries to report the reason to the
// others.
constexpr absl::Duration kErrorGrace = absl::Seconds(5);

using GroupPointer = std::shared_ptr<ProcessGroup>;

// The default groups of this process and, where ranks are threads, of each.
// Leaked, so that a group that was not destroyed is not torn down among static
// destructors.
struct Defaults {
  absl::Mutex mutex;
  GroupPointer process ABSL_GUARDED_BY(mutex);
};

Defaults& GetDefaults() {
  static Defaults* const defaults = new Defaults;
  return *defaults;
}

GroupPointer& ThreadDefault() {
  thread_local GroupPointer group;
  return group;
}

bool IsAlive(const GroupPointer& group) {
  return group != nullptr && !group->IsDestroyed();
}

absl::Status CheckNoDefault(bool ranks_are_threads) {
  Defaults& defaults = GetDefaults();
  absl::MutexLock lock(&defaults.mutex);
  if (IsAlive(ranks_are_threads ? ThreadDefault() : defaults.process)) {
    return absl::FailedPreconditionError(
        "trying to initialize the default process group twice: destroy the "
        "first one before");
  }
  return absl::OkStatus();
}

void MakeDefault(const GroupPointer& group, bool ranks_are_threads) {
  if (ranks_are_threads) {
    SetThreadLogRank(group->rank());
    ThreadDefault() = group;
    return;
  }
  SetLogRank(group->rank());
  Defaults& defaults = GetDefaults();
  // Goes without the lock, which what it waits for may take.
  GroupPointer previous = group;
  absl::MutexLock lock(&defaults.mutex);
  defaults.process.swap(previous);
}

absl::StatusOr<absl::Duration> TimeoutFrom(const InitOptions& options) {
  if (options.timeout) {
    if (*options.timeout <= absl::ZeroDuration()) {
      return absl::InvalidArgumentError("Init: timeout must be above zero");
    }
    return *options.timeout;
  }
  SHERD_ASSIGN_OR_RETURN(const std::optional<absl::Duration> value,
                         GetDurationKnob(Knob::kTimeout));
  return value.value_or(absl::Minutes(5));
}

absl::StatusOr<const Backend*> Usable(absl::string_view name) {
  SHERD_ASSIGN_OR_RETURN(const Backend* backend,
                         BackendRegistry::Global().Find(name));
  SHERD_RETURN_IF_ERROR(backend->Probe());
  return backend;
}

// The properties that this rank contributes to the group.
struct Candidate {
  // Null with "auto" until all ranks have met, and with an error.
  const Backend* backend = nullptr;
  // Null without a part for devices.
  const Backend* device_backend = nullptr;
  // How many of them this process sees.
  int devices = 0;
  std::string shm_obstacle;
  absl::Status error;
};

absl::Status FindDevicePart(const BackendChoice& choice,
                            const std::optional<Device>& asked,
                            Candidate& candidate) {
  if (asked) {
    SHERD_RETURN_IF_ERROR(Annotate(asked->status(), "InitOptions::device"));
  }
  if (choice.cuda.empty()) {
    return !asked || asked->is_cpu()
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat(
                     "InitOptions::device is ", asked->ToString(),
                     ", but the backend \"", choice.text,
                     "\" works on host memory only, expected one such as "
                     "\"cpu:auto,cuda:nccl\""));
  }
  const std::string part =
      absl::StrCat("the cuda part of \"", choice.text, "\" cannot be made");
  const std::string remedy =
      absl::StrCat(". Without tensors on GPUs, ask for \"", choice.cpu, "\"");
  const auto missing = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat(part, ": ", status.message(), remedy));
  };
  const absl::StatusOr<const Backend*> backend =
      BackendRegistry::Global().Find(choice.cuda);
  if (!backend.ok()) return missing(backend.status());
  if ((*backend)->info().device_type != DeviceType::kCuda) {
    return missing(absl::FailedPreconditionError(absl::StrCat(
        "backend ", choice.cuda,
        " works on host memory, expected one for cuda memory such as nccl")));
  }
  const absl::StatusOr<DeviceRuntime*> runtime =
      DeviceRuntime::For(DeviceType::kCuda);
  if (!runtime.ok()) return missing(runtime.status());
  const absl::StatusOr<int> count = (*runtime)->DeviceCount();
  if (!count.ok()) return missing(count.status());
  // Last, because its error is less specific about a faulty driver.
  const absl::Status usable = (*backend)->Probe();
  if (!usable.ok()) return missing(usable);
  candidate.devices = *count;
  candidate.device_backend = *backend;
  if (asked && !asked->is_cuda()) {
    return absl::InvalidArgumentError(
        absl::StrCat("InitOptions::device is ", asked->ToString(),
                     ", expected cuda or cuda:N for the cuda part of \"",
                     choice.text, "\""));
  }
  if (asked && asked->index >= *count) {
    return absl::OutOfRangeError(
        absl::StrCat("InitOptions::device is ", asked->ToString(),
                     ", but this process sees ", *count,
                     " devices, cuda:0 to cuda:", *count - 1));
  }
  return absl::OkStatus();
}

Candidate FindCandidate(const BackendChoice& choice,
                        const std::optional<Device>& device) {
  Candidate candidate;
  candidate.error = FindDevicePart(choice, device, candidate);
  if (!candidate.error.ok()) return candidate;
  if (choice.cpu == kAuto) {
    const absl::StatusOr<const Backend*> shm = Usable("shm");
    if (shm.ok()) return candidate;
    candidate.shm_obstacle = std::string(shm.status().message());
    candidate.error = Usable("gloo").status();
    return candidate;
  }
  const absl::StatusOr<const Backend*> found = Usable(choice.cpu);
  candidate.error = found.status();
  if (!found.ok()) return candidate;
  candidate.backend = *found;
  if ((*found)->info().on_device()) {
    candidate.error = absl::FailedPreconditionError(absl::StrCat(
        "backend ", choice.cpu,
        " works on the memory of devices, and every group works on the host's "
        "too: ask for \"cpu:auto,cuda:",
        choice.cpu, "\""));
  }
  return candidate;
}

absl::Status MaybeInjectFaultAt(FaultPoint point, const InitOptions& options,
                                const LaunchEnvironment& place) {
  return MaybeInjectFault(
      {.point = point, .rank = place.rank, .subject = options.group_name});
}

struct Connection {
  const Backend* backend;
  std::string bind_address;
};

// This rank's device: the requested one, otherwise the one whose number is the
// number of lower ranks on the same host.
absl::StatusOr<Device> DeviceFor(const InitOptions& options,
                                 const LaunchEnvironment& place,
                                 const Candidate& candidate,
                                 const BackendAgreement& agreement) {
  if (candidate.device_backend == nullptr) return Device();
  if (options.device && options.device->index >= 0) return *options.device;
  Device device{candidate.device_backend->info().device_type, 0};
  if (candidate.devices > 1) {
    if (!place.local_rank && !agreement.one_host()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "this rank sees ", candidate.devices,
          " devices and its launcher does not say which rank of its host it "
          "is: set LOCAL_RANK or InitOptions::device"));
    }
    device.index = place.local_rank.value_or(place.rank) % candidate.devices;
  }
  return device;
}

absl::StatusOr<Connection> Choose(const BackendAgreement& agreement,
                                  const std::string& master) {
  Connection connection;
  SHERD_ASSIGN_OR_RETURN(connection.backend, Usable(agreement.backend));
  if (!agreement.one_network) {
    SHERD_ASSIGN_OR_RETURN(connection.bind_address,
                           internal::AddressForOthers(master));
  }
  return connection;
}

// Settles what all ranks have to agree on, before connections are made, and
// completes `membership`.
absl::StatusOr<BackendAgreement> Agree(Store& store,
                                       const BackendChoice& choice,
                                       const Candidate& candidate,
                                       Deadline deadline,
                                       Membership& membership) {
  const BackendRequest request = {
      // "cpu:auto" means the same as "auto".
      .backend = choice.cpu,
      .device_backend = choice.cuda,
      .one_host_only = candidate.backend != nullptr &&
                       candidate.backend->info().one_host_only,
      .shm_obstacle = candidate.shm_obstacle,
      .host = OwnHostIdentity()};
  SHERD_ASSIGN_OR_RETURN(
      const std::string text,
      internal::ExchangeMembership(store, /*expected=*/{}, deadline, membership,
                                   {.note = request.ToText(),
                                    .error = candidate.error,
                                    .settle = internal::AgreeOnBackend}));
  SHERD_ASSIGN_OR_RETURN(BackendAgreement agreement,
                         BackendAgreement::Parse(text));
  if (choice.cpu == kAuto) {
    SHERD_LOG(kDebug) << "backend auto is " << agreement.backend
                      << (agreement.reason.empty() ? "" : ": ")
                      << agreement.reason;
  }
  return agreement;
}

// The error of a rank that could not agree with the others.
absl::Status NotMet(absl::Status status, const LaunchEnvironment& place,
                    const Rendezvous& rendezvous) {
  // The store of a master ends with the process of rank 0.
  const bool lost = absl::IsUnavailable(status) && !ErrorRank(status) &&
                    place.rank != 0 && !rendezvous.master.empty();
  if (!lost) return status;
  return WithFailedRank(Annotate(std::move(status), "the store of rank 0"), 0);
}

absl::StatusOr<GroupPointer> Join(const InitOptions& options,
                                  const LaunchEnvironment& place,
                                  const BackendChoice& choice,
                                  const Candidate& candidate,
                                  const Rendezvous& rendezvous,
                                  absl::Duration timeout, Deadline deadline) {
  const std::shared_ptr<Store>& store = rendezvous.session->store();
  Membership membership(options.group_name, place.rank, place.world_size,
                        /*world_ranks=*/{}, place.world_size);
  const absl::StatusOr<BackendAgreement> agreement =
      Agree(*store, choice, candidate, deadline, membership);
  if (!agreement.ok()) return NotMet(agreement.status(), place, rendezvous);
  // The other ranks connect already, and wait for this one.
  const auto report = [&](absl::Status status) {
    internal::FailureLog(store, membership).Report(status, std::nullopt);
    return status;
  };
  const absl::StatusOr<Connection> connection =
      Choose(*agreement, rendezvous.master);
  if (!connection.ok()) return report(connection.status());
  const absl::StatusOr<Device> device =
      DeviceFor(options, place, candidate, *agreement);
  if (!device.ok()) return report(device.status());
  return internal::ProcessGroupAccess::CreateAfterMeeting(
      *connection->backend,
      {.name = options.group_name,
       .rank = place.rank,
       .size = place.world_size,
       .store = store,
       .timeout = timeout,
       .on_destroy = [session = rendezvous.session] { session->Leave(); },
       .bind_address = connection->bind_address,
       .join_deadline = deadline,
       .processes = {membership.processes().begin(),
                     membership.processes().end()},
       .device_backend = candidate.device_backend,
       .device = *device});
}

absl::StatusOr<GroupPointer> MeetAndJoin(const InitOptions& options,
                                         const LaunchEnvironment& place,
                                         std::optional<InitMethod> method,
                                         const BackendChoice& choice,
                                         absl::Duration timeout) {
  const Deadline deadline = Deadline::After(timeout);
  Candidate candidate = FindCandidate(choice, options.device);
  const bool threads = candidate.backend != nullptr &&
                       candidate.backend->info().ranks_are_threads;
  SHERD_RETURN_IF_ERROR(CheckNoDefault(threads));
  SHERD_RETURN_IF_ERROR(
      MaybeInjectFaultAt(FaultPoint::kBeforeMeeting, options, place));
  const Deadline meeting =
      candidate.error.ok()
          ? deadline
          : Deadline::Earlier(deadline, Deadline::After(kErrorGrace));
  const absl::StatusOr<Rendezvous> rendezvous =
      internal::Meet({.group = options.group_name,
                      .place = place,
                      .method = std::move(method),
                      .store = options.store,
                      .backend = candidate.backend,
                      .deadline = meeting});
  if (!rendezvous.ok()) {
    return candidate.error.ok() ? rendezvous.status() : candidate.error;
  }
  // Reported to all ranks when they exchange their records.
  candidate.error.Update(
      MaybeInjectFaultAt(FaultPoint::kAfterMeeting, options, place));
  absl::StatusOr<GroupPointer> group =
      Join(options, place, choice, candidate, *rendezvous, timeout, meeting);
  if (!group.ok()) {
    rendezvous->session->GiveUp(group.status());
    return group.status();
  }
  MakeDefault(*group, (*group)->backend().ranks_are_threads);
  return group;
}

absl::Status Describe(absl::Status status, const InitOptions& options) {
  const ErrorInfo known = GetErrorInfo(status);
  // An error of the group itself already has its operation.
  if (known.operation.empty()) {
    status = Annotate(std::move(status),
                      absl::StrCat("group \"", options.group_name, "\", init"));
  }
  ErrorInfo info;
  info.group = options.group_name;
  info.operation = "init";
  return WithErrorInfo(std::move(status), info);
}

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> Init(const InitOptions& options) {
  SHERD_ASSIGN_OR_RETURN(const absl::Duration timeout, TimeoutFrom(options));
  SHERD_ASSIGN_OR_RETURN(
      const BackendChoice choice,
      BackendChoice::Parse(options.backend.empty()
                               ? GetKnobOr(Knob::kBackend, kAuto)
                               : options.backend));
  SHERD_ASSIGN_OR_RETURN(
      const MeetingPlace meeting,
      internal::FindMeeting({.rank = options.rank,
                             .world_size = options.world_size,
                             .init_method = options.init_method,
                             .store = options.store},
                            "Init", "InitOptions"));
  absl::StatusOr<GroupPointer> group =
      MeetAndJoin(options, meeting.place, meeting.method, choice, timeout);
  if (group.ok()) return group;
  return Describe(group.status(), options);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> DefaultGroup() {
  if (IsAlive(ThreadDefault())) return ThreadDefault();
  Defaults& defaults = GetDefaults();
  absl::MutexLock lock(&defaults.mutex);
  if (IsAlive(defaults.process)) return defaults.process;
  return absl::FailedPreconditionError(
      "Default process group has not been initialized, call sherd::Init");
}

}  // namespace sherd
