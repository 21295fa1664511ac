#include "sherd/core/tensor/device/device_transfer.h"

#include <memory>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::internal {
namespace {

// How much is copied.
struct Extent {
  absl::Span<const int64_t> sizes;
  size_t element_size;

  size_t bytes() const {
    return static_cast<size_t>(Volume(sizes)) * element_size;
  }
};

bool IsRun(const TransferSide& side, const Extent& extent) {
  return IsContiguousRun(extent.sizes, side.strides);
}

// Memory for all of it as one run.
struct Staging {
  std::shared_ptr<Storage> storage;
  Dims strides;

  TransferSide side() const {
    return {*storage, static_cast<std::byte*>(storage->data()), strides};
  }
};

absl::StatusOr<Staging> MakeStaging(const Device& device,
                                    const Extent& extent) {
  SHERD_ASSIGN_OR_RETURN(Allocator* const allocator,
                         DeviceRuntime::AllocatorFor(device));
  Staging staging;
  SHERD_ASSIGN_OR_RETURN(staging.storage,
                         Storage::Allocate(extent.bytes(), *allocator));
  staging.strides = ContiguousStrides(extent.sizes);
  return staging;
}

void CopyOnHost(const TransferSide& dst, const TransferSide& src,
                const Extent& extent) {
  StridedCopy(dst.data, dst.strides, src.data, src.strides, extent.sizes,
              extent.element_size);
}

// Within what one device reaches.
absl::Status CopyOnDevice(DeviceRuntime& runtime, const DeviceStream& stream,
                          const TransferSide& dst, const TransferSide& src,
                          const Extent& extent) {
  const DeviceCopy copy = {.dst = dst.data,
                           .dst_strides = dst.strides,
                           .src = src.data,
                           .src_strides = src.strides,
                           .sizes = extent.sizes,
                           .element_size = extent.element_size};
  SHERD_RETURN_IF_ERROR(runtime.Copy(stream, {&copy, 1}));
  dst.storage.UsedOn(stream);
  src.storage.UsedOn(stream);
  return absl::OkStatus();
}

// Two runs, of any memory.
absl::Status CopyRun(DeviceRuntime& runtime, const DeviceStream& stream,
                     const TransferSide& dst, const TransferSide& src,
                     const Extent& extent) {
  SHERD_RETURN_IF_ERROR(
      runtime.CopyBytes(stream, dst.data, src.data, extent.bytes()));
  dst.storage.UsedOn(stream);
  src.storage.UsedOn(stream);
  return absl::OkStatus();
}

absl::StatusOr<bool> IsCapturing(DeviceRuntime& runtime,
                                 const DeviceStream& stream) {
  if (stream.handle == nullptr) return false;
  return runtime.IsCapturing(stream);
}

absl::Status NotInAGraph(const Device& device, absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("a stream of ", device.ToString(),
                   " is being captured into a graph, which cannot ", what));
}

// Work queued now can be launched repeatedly.
absl::Status CheckHostSource(DeviceRuntime& runtime, const DeviceStream& stream,
                             const TransferSide& src) {
  SHERD_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(runtime, stream));
  if (!capturing) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(const std::optional<Device> found,
                         runtime.Locate(src.data));
  if (found.has_value()) return absl::OkStatus();
  return NotInAGraph(stream.device,
                     "read host memory but that of "
                     "DeviceRuntime::PinnedMemory()");
}

absl::Status FromHost(const TransferSide& dst, const TransferSide& src,
                      const Extent& extent) {
  const Device device = dst.storage.device();
  if (!IsRun(src, extent)) {
    SHERD_ASSIGN_OR_RETURN(const Staging staging, MakeStaging({}, extent));
    CopyOnHost(staging.side(), src, extent);
    return FromHost(dst, staging.side(), extent);
  }
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(device.type));
  const DeviceStream stream = CurrentStream(device);
  SHERD_RETURN_IF_ERROR(CheckHostSource(*runtime, stream, src));
  if (IsRun(dst, extent)) return CopyRun(*runtime, stream, dst, src, extent);
  SHERD_ASSIGN_OR_RETURN(const Staging staging, MakeStaging(device, extent));
  SHERD_RETURN_IF_ERROR(CopyRun(*runtime, stream, staging.side(), src, extent));
  return CopyOnDevice(*runtime, stream, dst, staging.side(), extent);
}

absl::Status ToHost(const TransferSide& dst, const TransferSide& src,
                    const Extent& extent) {
  const Device device = src.storage.device();
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(device.type));
  const DeviceStream stream = CurrentStream(device);
  SHERD_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(*runtime, stream));
  if (capturing) return NotInAGraph(device, "hand elements to the host");
  if (!IsRun(src, extent)) {
    SHERD_ASSIGN_OR_RETURN(const Staging staging, MakeStaging(device, extent));
    SHERD_RETURN_IF_ERROR(
        CopyOnDevice(*runtime, stream, staging.side(), src, extent));
    return ToHost(dst, staging.side(), extent);
  }
  if (!IsRun(dst, extent)) {
    SHERD_ASSIGN_OR_RETURN(const Staging staging, MakeStaging({}, extent));
    SHERD_RETURN_IF_ERROR(ToHost(staging.side(), src, extent));
    CopyOnHost(dst, staging.side(), extent);
    return absl::OkStatus();
  }
  SHERD_RETURN_IF_ERROR(CopyRun(*runtime, stream, dst, src, extent));
  return runtime->Synchronize(stream);
}

// `waiting` runs what is queued from now on after what `stream` holds.
absl::Status WaitFor(DeviceRuntime& runtime, const DeviceStream& stream,
                     const DeviceStream& waiting) {
  const int device = stream.device.index;
  SHERD_ASSIGN_OR_RETURN(const DeviceEvent event, runtime.TakeEvent(device));
  const absl::Cleanup return_event = [&] {
    runtime.ReturnEvent(device, event);
  };
  SHERD_RETURN_IF_ERROR(runtime.RecordEvent(event, stream));
  return runtime.WaitEvent(waiting, event);
}

// Two devices of one type.
absl::Status BetweenDevices(const TransferSide& dst, const TransferSide& src,
                            const Extent& extent) {
  const Device device = dst.storage.device();
  const Device src_device = src.storage.device();
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(device.type));
  const DeviceStream stream = CurrentStream(device);
  const DeviceStream src_stream = CurrentStream(src_device);
  if (!IsRun(src, extent)) {
    SHERD_ASSIGN_OR_RETURN(const Staging staging,
                           MakeStaging(src_device, extent));
    SHERD_RETURN_IF_ERROR(
        CopyOnDevice(*runtime, src_stream, staging.side(), src, extent));
    return BetweenDevices(dst, staging.side(), extent);
  }
  if (!IsRun(dst, extent)) {
    SHERD_ASSIGN_OR_RETURN(const Staging staging, MakeStaging(device, extent));
    SHERD_RETURN_IF_ERROR(BetweenDevices(staging.side(), src, extent));
    return CopyOnDevice(*runtime, stream, dst, staging.side(), extent);
  }
  SHERD_RETURN_IF_ERROR(WaitFor(*runtime, src_stream, stream));
  SHERD_RETURN_IF_ERROR(CopyRun(*runtime, stream, dst, src, extent));
  return WaitFor(*runtime, stream, src_stream);
}

}  // namespace

absl::Status Transfer(const TransferSide& dst, const TransferSide& src,
                      absl::Span<const int64_t> sizes, size_t element_size) {
  const Extent extent = {sizes, element_size};
  const Device to = dst.storage.device();
  const Device from = src.storage.device();
  if (from.is_cpu()) return FromHost(dst, src, extent);
  if (to.is_cpu()) return ToHost(dst, src, extent);
  if (to == from) {
    SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                           DeviceRuntime::For(to.type));
    return CopyOnDevice(*runtime, CurrentStream(to), dst, src, extent);
  }
  if (to.type == from.type) return BetweenDevices(dst, src, extent);
  return absl::UnimplementedError(
      absl::StrCat("elements cannot go from ", from.ToString(), " to ",
                   to.ToString(), " directly; copy them to the CPU first"));
}

}  // namespace sherd::internal
