// How a process becomes a member of a group.

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/waiting_deleter.h"
#include "sherd/core/comm/collective/call_comparison.h"
#include "sherd/core/comm/flight/flight_dump.h"
#include "sherd/core/comm/group/membership_exchange.h"
#include "sherd/core/comm/group/process_group_impl.h"

namespace sherd {
namespace {

using internal::CallComparison;
using internal::DeviceChannel;
using internal::DeviceConnector;
using internal::DeviceOrigin;

}  // namespace

absl::StatusOr<ProcessGroup::Impl::CallCheck>
ProcessGroup::Impl::GetCallCheck() {
  const std::string value = GetKnobOr(Knob::kCheckCalls, "auto");
  if (value == "auto") return CallCheck::kAuto;
  if (value == "message") return CallCheck::kMessage;
  if (value == "off") return CallCheck::kOff;
  return absl::InvalidArgumentError(absl::StrCat(
      "environment variable ", GetKnobInfo(Knob::kCheckCalls).variable,
      " is \"", value, "\", expected auto, message or off"));
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Impl::Create(
    const Backend& backend, ProcessGroupOptions options,
    absl::string_view operation, DeviceOrigin& origin, bool have_met) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of world size ", options.size,
                     ": expected 0 <= rank < world size"));
  }
  const Deadline deadline =
      options.join_deadline.value_or(Deadline::After(options.timeout));
  auto impl = std::make_unique<Impl>(backend, std::move(options));
  absl::Status status = impl->Join(deadline, origin, have_met);
  if (!status.ok()) {
    if (const std::optional<int> failed = FailedRank(status)) {
      impl->calls_.SetFailedRank(*failed);
      impl->calls_.DumpOnce(internal::FlightReason::kPoisoned,
                            status.message());
    }
    // It never was a member: it neither leaves the group, which might be that
    // of another process with the same rank, nor retires from its store.
    impl->peers_.BeginToLeave();
    // Others may have connected to it and wait there. A library that all
    // groups of the process share (MPI) also learns that it was given up.
    impl->EndOperations();
    return impl->Describe(operation,
                          impl->membership_.WithJobRank(std::move(status)));
  }
  impl->watch_ = internal::Watchdog::Global().Add(
      impl->calls_.tag(),
      [member = impl.get()](absl::Status cause) { member->Abort(cause); });
  // The destructor waits for operations, which may need the watchdog to end,
  // and log when they do.
  return std::shared_ptr<ProcessGroup>(new ProcessGroup(std::move(impl)),
                                       internal::WaitingDeleter());
}

absl::Status ProcessGroup::Impl::Join(Deadline deadline, DeviceOrigin& origin,
                                      bool have_met) {
  const absl::StatusOr<CallCheck> check = GetCallCheck();
  if (have_met) {
    membership_.SetProcesses(options_.processes);
  } else {
    SHERD_RETURN_IF_ERROR(internal::ExchangeMembership(
                              *options_.store, options_.processes, deadline,
                              membership_, {.error = check.status()})
                              .status());
  }
  absl::Status status = check.status();
  if (status.ok()) {
    SHERD_RETURN_IF_ERROR(ConnectHost(*check, deadline));
    status = ConnectDevice(deadline, origin);
  }
  // For ranks that still wait for this one.
  if (!status.ok()) peers_.Report(status);
  return status;
}

absl::Status ProcessGroup::Impl::ConnectHost(CallCheck check,
                                             Deadline deadline) {
  const BackendInfo& info = backend_.info();
  if (info.one_host_only && !membership_.one_host()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the ranks run on several hosts, but backend ", info.name,
                     " connects ranks of one host only: use gloo or mpi"));
  }
  if (membership_.size() == 1) return absl::OkStatus();
  // Before the connection, which waits for all ranks.
  absl::Status status = MakeComparison(check, deadline);
  if (status.ok()) {
    status = host_->Connect(backend_, OptionsForCommunicator(deadline));
  }
  if (status.ok()) return status;
  return Annotate(peers_.FailToConnect(std::move(status)),
                  absl::StrCat("backend ", info.name));
}

absl::Status ProcessGroup::Impl::ConnectDevice(Deadline deadline,
                                               DeviceOrigin& origin) {
  if (options_.device_backend == nullptr) return absl::OkStatus();
  DeviceConnector connector(*options_.device_backend, options_.device,
                            membership_, peers_, origin);
  auto channel = std::make_unique<DeviceChannel>(
      options_.device_backend->info(), calls_,
      internal::DeviceChannelOptions{.store = options_.store.get(),
                                     .timeout = options_.timeout,
                                     .queue = &queue_});
  SHERD_ASSIGN_OR_RETURN(
      std::vector<Device> devices,
      connector.Connect(OptionsForCommunicator(deadline), *channel));
  membership_.SetDevices(std::move(devices));
  device_ = std::move(channel);
  return absl::OkStatus();
}

// Where the backend does not compare calls itself, the host does, and with a
// device part always.
absl::Status ProcessGroup::Impl::MakeComparison(CallCheck check,
                                                Deadline deadline) {
  const BackendInfo& info = backend_.info();
  const bool on_devices = device().has_value();
  const bool on_host =
      !info.compares_calls && info.native.Has(CollectiveOp::kAllToAllV);
  if (check == CallCheck::kOff || !(on_host || on_devices)) {
    return absl::OkStatus();
  }
  const int rank = membership_.rank();
  const int size = membership_.size();
  if (membership_.one_host() && check == CallCheck::kAuto) {
    SHERD_ASSIGN_OR_RETURN(
        auto comparison,
        CallComparison::OnBoard(peers_.meeting(), rank, size, deadline));
    comparison->WatchRanks(
        [this] { return peers_.FindFailedRank().has_value(); });
    if (on_devices) comparison->ExpectDeviceCalls();
    calls_.SetComparison(std::move(comparison));
  } else if (on_host) {
    calls_.SetComparison(CallComparison::ByMessages(rank, size));
  }
  return absl::OkStatus();
}

CommunicatorOptions ProcessGroup::Impl::OptionsForCommunicator(
    Deadline deadline) {
  CommunicatorOptions options = {.group = membership_.name(),
                                 .rank = membership_.rank(),
                                 .size = membership_.size(),
                                 .store = &peers_.meeting(),
                                 .deadline = deadline,
                                 .world_ranks = membership_.world_ranks(),
                                 .world_size = membership_.world_size(),
                                 .one_host = membership_.one_host()};
  if (!options_.bind_address.empty()) options.address = options_.bind_address;
  return options;
}

absl::StatusOr<std::shared_ptr<ProcessGroup>>
internal::ProcessGroupAccess::CreateAfterMeeting(const Backend& backend,
                                                 ProcessGroupOptions options) {
  DeviceOrigin origin;
  return ProcessGroup::Impl::Create(backend, std::move(options), "init", origin,
                                    /*have_met=*/true);
}

}  // namespace sherd
