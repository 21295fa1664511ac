#include "sherd/rpc/devices/device_staging.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/scoped_blocked.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/payload.h"

namespace sherd::internal {

bool IsOnDevice(const Tensor& tensor) {
  return tensor.defined() && !tensor.device().is_cpu() &&
         !tensor.device().is_meta();
}

bool AnyOnDevice(absl::Span<const Tensor> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), IsOnDevice);
}

absl::StatusOr<Tensor> EmptyForCopyTo(const Device& device,
                                      absl::Span<const int64_t> sizes,
                                      DType dtype) {
  if (device.is_cpu()) return Tensor::Empty(sizes, {.dtype = dtype});
  const absl::Status status = DeviceRuntime::Resolve(device).status();
  if (!status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a device map leads to ", device.ToString(), ": ", status.message()));
  }
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(device.type));
  return Tensor::Empty(sizes,
                       {.dtype = dtype, .allocator = runtime->PinnedMemory()});
}

absl::StatusOr<QueuedWork> QueuedWork::For(absl::Span<const Tensor> tensors) {
  QueuedWork work;
  std::vector<Device> devices;
  for (const Tensor& tensor : tensors) {
    if (!IsOnDevice(tensor) || std::find(devices.begin(), devices.end(),
                                         tensor.device()) != devices.end()) {
      continue;
    }
    const Device device = devices.emplace_back(tensor.device());
    SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                           DeviceRuntime::For(device.type));
    const DeviceStream stream = CurrentStream(device);
    if (stream.handle != nullptr) {
      SHERD_ASSIGN_OR_RETURN(const bool capturing,
                             runtime->IsCapturing(stream));
      if (capturing) {
        return absl::FailedPreconditionError(
            absl::StrCat("a stream of ", device.ToString(),
                         " is being captured into a "
                         "graph, which cannot hand tensors to other workers"));
      }
    }
    SHERD_ASSIGN_OR_RETURN(const DeviceEvent event,
                           runtime->TakeEvent(device.index));
    work.marks_.push_back({runtime, device.index, event});
    SHERD_RETURN_IF_ERROR(runtime->RecordEvent(event, stream));
  }
  return work;
}

QueuedWork::~QueuedWork() {
  for (const Mark& mark : marks_) {
    mark.runtime->ReturnEvent(mark.device, mark.event);
  }
}

absl::Status QueuedWork::Await(Deadline deadline) const {
  const ScopedBlocked blocked(WaitFor::kWork);
  for (const Mark& mark : marks_) {
    SHERD_RETURN_IF_ERROR(
        mark.runtime->AwaitEvent(mark.device, mark.event, deadline));
  }
  return absl::OkStatus();
}

absl::Status AwaitQueued(absl::Span<const Tensor> tensors, Deadline deadline) {
  if (!AnyOnDevice(tensors)) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(const QueuedWork queued, QueuedWork::For(tensors));
  return queued.Await(deadline);
}

absl::Status CopyToHost(absl::Span<Tensor> tensors, Deadline deadline) {
  if (!AnyOnDevice(tensors)) return absl::OkStatus();
  // The copies are waited for too.
  const ScopedBlocked blocked(WaitFor::kWork);
  SHERD_RETURN_IF_ERROR(AwaitQueued(tensors, deadline));
  for (Tensor& tensor : tensors) {
    if (!IsOnDevice(tensor)) continue;
    SHERD_ASSIGN_OR_RETURN(
        Tensor staged,
        EmptyForCopyTo(tensor.device(), tensor.sizes(), tensor.dtype()));
    SHERD_RETURN_IF_ERROR(staged.CopyFrom(tensor));
    tensor = std::move(staged);
  }
  return absl::OkStatus();
}

absl::Status CopyToDevices(Payload& payload) {
  const std::vector<Device> devices = std::exchange(payload.devices, {});
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].is_cpu()) continue;
    absl::StatusOr<Tensor> there = payload.tensors[i].To(devices[i]);
    if (!there.ok()) {
      return Annotate(there.status(), absl::StrCat("copying tensor ", i, " to ",
                                                   devices[i].ToString()));
    }
    payload.tensors[i] = *std::move(there);
  }
  return absl::OkStatus();
}

}  // namespace sherd::internal
