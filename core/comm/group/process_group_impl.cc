// How a group carries out calls, and ends.

#include "sherd/core/comm/group/process_group_impl.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/emulation.h"
#include "sherd/core/comm/flight/flight_dump.h"
#include "sherd/core/tensor/device_runtime.h"

namespace sherd {
namespace {

using internal::Channel;
using internal::CollectiveCall;
using internal::DeviceChannel;
using internal::Emulation;
using internal::FlightGroupInfo;
using internal::HostChannel;
using internal::Membership;

std::optional<FlightGroupInfo> InfoForFlight(
    const Backend& backend, const Membership& membership,
    const ProcessGroupOptions& options) {
  if (!membership.is_member()) return std::nullopt;
  FlightGroupInfo info = {.name = membership.name(),
                          .backend = backend.info().name,
                          .rank = membership.rank(),
                          .size = membership.size(),
                          .world_ranks = {membership.world_ranks().begin(),
                                          membership.world_ranks().end()}};
  if (options.device_backend != nullptr) {
    info.device = options.device.ToString();
    info.device_backend = options.device_backend->info().name;
  }
  return info;
}

}  // namespace

ProcessGroup::Impl::Impl(const Backend& backend, ProcessGroupOptions options)
    : options_(std::move(options)),
      backend_(backend),
      membership_(options_.name, options_.rank, options_.size,
                  options_.world_ranks, options_.world_size),
      peers_(options_.store, membership_, *this),
      calls_(membership_, peers_,
             InfoForFlight(backend, membership_, options_)) {
  if (membership_.is_member()) {
    host_ = std::make_unique<HostChannel>(backend.info(), calls_, queue_);
  }
}

ProcessGroup::Impl::~Impl() { End(); }

void ProcessGroup::Impl::End() {
  if (device_ != nullptr && !peers_.has_left()) {
    SHERD_LOG(kWarning) << "group \"" << membership_.name()
                        << "\" was not destroyed: its resources on "
                        << options_.device.ToString() << " leak";
    device_->Abandon();
  }
  Destroy().IgnoreError();
}

OperationPath ProcessGroup::Impl::PathOf(CollectiveOp op, DType dtype,
                                         ReduceOp reduction,
                                         DeviceType device) const {
  if (device == DeviceType::kCpu) {
    return Emulation::PathOf(backend_.info().native, op, dtype, reduction);
  }
  const BackendInfo* const info = device_backend();
  if (info == nullptr || info->device_type != device) {
    return OperationPath::kUnsupported;
  }
  return Emulation::PathOf(info->native, op, dtype, reduction);
}

absl::Status ProcessGroup::Impl::Run(CollectiveCall call,
                                     const CollectiveOptions& options) {
  Channel* channel = host_.get();
  SHERD_RETURN_IF_ERROR(Admit(options, call, channel));
  return channel->Run(call.desc);
}

Work ProcessGroup::Impl::Start(CollectiveCall call,
                               const CollectiveOptions& options) {
  Channel* channel = host_.get();
  if (absl::Status status = Admit(options, call, channel); !status.ok()) {
    return Work(std::move(status));
  }
  return channel->Start(call.desc);
}

absl::Status ProcessGroup::Impl::Admit(const CollectiveOptions& options,
                                       CollectiveCall& call,
                                       Channel*& channel) const {
  Collective& desc = call.desc;
  if (!membership_.is_member()) {
    return calls_.Describe(
        desc,
        absl::FailedPreconditionError(absl::StrCat(
            "this process is not a member of the group, whose ranks are "
            "ranks ",
            absl::StrJoin(membership_.world_ranks(), ", "), " of the job")));
  }
  const bool on_device = !options.device.is_cpu();
  if (on_device) {
    SHERD_RETURN_IF_ERROR(CheckDevice(desc, options.device));
    channel = device_.get();
  }
  if (!call.valid.ok()) return calls_.Describe(desc, call.valid);
  if (channel->PathOf(desc.op, desc.dtype, desc.reduction) ==
      OperationPath::kUnsupported) {
    return calls_.Describe(
        desc, absl::UnimplementedError(absl::StrCat(
                  "backend ", channel->backend().name, " has no ",
                  Name(desc.op), " and nothing from which it could be made")));
  }
  if (options_.device_backend != nullptr) {
    SHERD_RETURN_IF_ERROR(
        CheckBuffers(desc, on_device ? options_.device : Device()));
  }
  internal::SetType(options.dtype, call);
  desc.deadline = Deadline::After(options.timeout.value_or(options_.timeout));
  desc.on_device = on_device;
  return absl::OkStatus();
}

absl::Status ProcessGroup::Impl::CheckDevice(const Collective& call,
                                             const Device& device) const {
  const auto invalid = [&](const auto&... text) {
    return calls_.Describe(call,
                           absl::InvalidArgumentError(absl::StrCat(text...)));
  };
  if (device_ == nullptr) {
    return invalid("the buffers are on ", device.ToString(),
                   ", and the group works on host memory only: copy them to "
                   "the host, or Init with a backend for their device, such "
                   "as \"cpu:auto,cuda:nccl\"");
  }
  if (!SameDevice(device, options_.device)) {
    return invalid("the buffers are on ", device.ToString(),
                   ", expected cpu or ", options_.device.ToString(),
                   ", this rank's device in the group");
  }
  return absl::OkStatus();
}

absl::Status ProcessGroup::Impl::CheckBuffers(const Collective& call,
                                              const Device& place) const {
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(options_.device.type));
  const auto check = [&](const void* data, size_t bytes) -> absl::Status {
    if (data == nullptr || bytes == 0) return absl::OkStatus();
    const absl::StatusOr<std::optional<Device>> found = runtime->Locate(data);
    if (!found.ok()) {
      // A failed device does not concern the host part.
      return place.is_cpu() ? absl::OkStatus()
                            : calls_.Describe(call, found.status());
    }
    const Device at = found->value_or(Device());
    if (at == place) return absl::OkStatus();
    return calls_.Describe(
        call, absl::InvalidArgumentError(
                  absl::StrCat("a buffer is in the memory of ", at.ToString(),
                               ", expected ", place.ToString(),
                               ": CollectiveOptions::device must name the "
                               "memory of all buffers of a call")));
  };
  SHERD_RETURN_IF_ERROR(check(call.in, call.bytes));
  SHERD_RETURN_IF_ERROR(check(call.out, call.bytes));
  for (const ConstBytes& block : call.sends) {
    SHERD_RETURN_IF_ERROR(check(block.data(), block.size()));
  }
  for (const MutableBytes& block : call.recvs) {
    SHERD_RETURN_IF_ERROR(check(block.data(), block.size()));
  }
  return absl::OkStatus();
}

absl::Status ProcessGroup::Impl::Synchronize() {
  return device_ == nullptr ? absl::OkStatus() : device_->Synchronize();
}

absl::Status ProcessGroup::Impl::Batch(
    absl::FunctionRef<absl::Status()> calls) {
  if (device_ != nullptr) return device_->Batch(calls);
  return DeviceChannel::RefuseBatch(
      membership_, membership_.is_member()
                       ? "the group has no device part"
                       : "this process is not a member of the group");
}

absl::StatusOr<Allocator*> ProcessGroup::Impl::DeviceAllocator() const {
  if (!device()) {
    return absl::FailedPreconditionError(
        absl::StrCat("group \"", membership_.name(), "\" has no device part"));
  }
  Allocator* const own =
      options_.device_backend->device_allocator(options_.device.index);
  if (own != nullptr) return own;
  return DeviceRuntime::AllocatorFor(options_.device);
}

absl::StatusOr<std::shared_ptr<const void>> ProcessGroup::Impl::Register(
    MutableBytes buffer) {
  if (device_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("group \"", membership_.name(), "\" has no device part"));
  }
  return device_->Register(buffer);
}

std::optional<Device> ProcessGroup::Impl::device() const {
  if (!membership_.is_member() || options_.device_backend == nullptr) {
    return std::nullopt;
  }
  return options_.device;
}

const BackendInfo* ProcessGroup::Impl::device_backend() const {
  return options_.device_backend == nullptr ? nullptr
                                            : &options_.device_backend->info();
}

std::shared_ptr<PeerMemory> ProcessGroup::Impl::peer_memory() const {
  return host_ == nullptr || peers_.has_left() ? nullptr : host_->peer_memory();
}

absl::Status ProcessGroup::Impl::Destroy() {
  if (peers_.has_left()) return absl::OkStatus();
  if (device_ != nullptr && device_->IsInBatch()) {
    return Describe("destroy",
                    absl::FailedPreconditionError(
                        "called within a batch of the group: end it before"));
  }
  CallOnDestroy();
  if (host_ != nullptr) host_->WaitIdle();
  if (device_ != nullptr) device_->WaitIdle();
  if (!peers_.BeginToLeave()) return absl::OkStatus();
  membership_.MaybeInjectFault(FaultPoint::kDestroy, membership_.name())
      .IgnoreError();
  // Before the locks that ending an operation takes.
  watch_.Stop();
  if (calls_.comparison() != nullptr) calls_.comparison()->Leave();
  if (device_ != nullptr) {
    device_->Close();
    // The continuations of the Works that ended by that.
    queue_.WaitIdle();
  }
  if (host_ != nullptr) host_->Close();
  if (options_.on_destroy) options_.on_destroy();
  return absl::OkStatus();
}

absl::Status ProcessGroup::Impl::OnDestroy(
    std::function<void(const absl::Status& health)> callback) {
  absl::MutexLock lock(&on_destroy_.mutex);
  if (on_destroy_.called) {
    return Describe("on_destroy",
                    absl::FailedPreconditionError("the group was destroyed"));
  }
  on_destroy_.pending.push_back(std::move(callback));
  return absl::OkStatus();
}

void ProcessGroup::Impl::CallOnDestroy() {
  std::vector<std::function<void(const absl::Status&)>> callbacks;
  {
    absl::MutexLock lock(&on_destroy_.mutex);
    on_destroy_.called = true;
    callbacks.swap(on_destroy_.pending);
  }
  for (const auto& callback : callbacks) callback(peers_.health());
}

void ProcessGroup::Impl::Abort(const absl::Status& cause) {
  if (!membership_.is_member()) return;
  membership_.MaybeInjectFault(FaultPoint::kAbort, membership_.name())
      .IgnoreError();
  if (!peers_.Abort(cause)) return;
  calls_.DumpOnce(internal::FlightReason::kAbort, cause.message());
}

void ProcessGroup::Impl::EndOperations() {
  if (calls_.comparison() != nullptr) calls_.comparison()->Fail();
  host_->Abort();
  if (device_ != nullptr) device_->Abort();
}

}  // namespace sherd
