#include "sherd/core/sharding/shard.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

// Whether there is memory of `device`, given or not.
absl::Status CheckMemoryOf(const Device& device, Allocator* allocator) {
  SHERD_RETURN_IF_ERROR(device.status());
  if (device.is_cpu() || device.is_meta()) return absl::OkStatus();
  absl::string_view reason = "the allocator is for another one";
  absl::StatusOr<DeviceRuntime*> runtime(nullptr);
  if (allocator != nullptr) {
    if (allocator->device().type == device.type) return absl::OkStatus();
  } else {
    runtime = DeviceRuntime::For(device.type);
    if (runtime.ok()) return absl::OkStatus();
    reason = runtime.status().message();
  }
  return absl::UnimplementedError(absl::StrCat(
      "a shard on ", device.ToString(),
      " needs memory there, and no device plugin offers any (", reason,
      "): place shards on the CPU, or give an allocator for that device"));
}

}  // namespace

absl::StatusOr<Shard> Shard::FromTensorAndOffsets(
    Tensor tensor, absl::Span<const int64_t> offsets, int rank) {
  if (rank < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", rank, ", expected 0 or more"));
  }
  Shard shard;
  shard.metadata = {.offsets = Dims(offsets.begin(), offsets.end()),
                    .sizes = Dims(tensor.sizes().begin(), tensor.sizes().end()),
                    .placement = Placement::OnRank(rank, tensor.device())};
  shard.tensor = std::move(tensor);
  SHERD_RETURN_IF_ERROR(shard.Validate());
  return shard;
}

absl::Status Shard::Validate() const {
  SHERD_RETURN_IF_ERROR(metadata.Validate());
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensor of ", metadata.ToString(), " is undefined"));
  }
  if (tensor.sizes() != absl::MakeConstSpan(metadata.sizes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Shard tensor size does not match with metadata.shard_lengths: ",
        FormatDims(tensor.sizes()), " for ", metadata.ToString()));
  }
  if (metadata.placement &&
      !SameDevice(metadata.placement->device(), tensor.device())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Local shard tensor device does not match with local Shard's "
        "placement: ",
        tensor.device().ToString(), " for ", metadata.ToString()));
  }
  return absl::OkStatus();
}

absl::Status CheckShardedProperties(const TensorProperties& properties) {
  if (properties.layout != Layout::kStrided) {
    return absl::InvalidArgumentError(
        absl::StrCat("Only torch.strided layout is currently supported, found ",
                     Name(properties.layout)));
  }
  if (properties.memory_format != MemoryFormat::kContiguous) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Only torch.contiguous_format memory_format is currently supported, "
        "found ",
        Name(properties.memory_format)));
  }
  return absl::OkStatus();
}

absl::Status CheckPinnable(const TensorProperties& properties,
                           const Device& device) {
  if (!properties.pin_memory || device.is_cpu()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Only dense CPU tensors can be pinned: pin_memory is set "
                   "for a shard on ",
                   device.ToString()));
}

absl::StatusOr<bool> IsPinnedAsSaid(const TensorProperties& properties,
                                    const Tensor& tensor) {
  if (!tensor.device().is_cpu() || tensor.numel() == 0) return true;
  // Memory that is pinned came from a runtime that was loaded for it.
  DeviceRuntime* const runtime =
      properties.pin_memory
          ? DeviceRuntime::For(DeviceType::kCuda).value_or(nullptr)
          : DeviceRuntime::FindLoaded(DeviceType::kCuda);
  if (runtime == nullptr) return true;
  SHERD_ASSIGN_OR_RETURN(const std::optional<Device> found,
                         runtime->Locate(tensor.data()));
  return (found.has_value() && found->is_cpu()) == properties.pin_memory;
}

Allocator* PinnedMemory() {
  const absl::StatusOr<DeviceRuntime*> runtime =
      DeviceRuntime::For(DeviceType::kCuda);
  return runtime.ok() ? (*runtime)->PinnedMemory() : nullptr;
}

absl::StatusOr<Tensor> MakeLocalTensor(absl::Span<const int64_t> sizes,
                                       const TensorProperties& properties,
                                       const Device& device,
                                       Allocator* allocator) {
  SHERD_RETURN_IF_ERROR(CheckShardedProperties(properties));
  SHERD_RETURN_IF_ERROR(CheckPinnable(properties, device));
  SHERD_RETURN_IF_ERROR(CheckMemoryOf(device, allocator));
  if (allocator == nullptr && properties.pin_memory && device.is_cpu()) {
    allocator = PinnedMemory();
  }
  return Tensor::Empty(
      sizes,
      {.dtype = properties.dtype, .device = device, .allocator = allocator});
}

}  // namespace sherd
