#include "sherd/core/nn/lookup/lookup_place.h"

#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/collective/operations.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/nn/lookup/lookup_plan.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"

namespace sherd::internal {
namespace {

absl::Status CheckStream(DeviceRuntime& runtime, const DeviceStream& stream) {
  if (stream.handle == nullptr) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(const bool capturing, runtime.IsCapturing(stream));
  if (!capturing) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "a stream of ", stream.device.ToString(),
      " is being captured into a graph, which cannot contain a lookup: its ids "
      "come from the host"));
}

// Whether rows can be pooled there: found before other ranks rely on this one.
absl::Status CheckCanPool(const Device& device) {
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(device.type));
  const DeviceStream stream = CurrentStream(device);
  SHERD_RETURN_IF_ERROR(CheckStream(*runtime, stream));
  return runtime->PoolRows(stream, {});
}

// A device of the type of `device`, for a rank without rows.
absl::StatusOr<Device> DeviceOfReader(const Device& device,
                                      absl::Span<const TableLookUp> lookups,
                                      const ProcessGroup* group) {
  for (const TableLookUp& lookup : lookups) {
    const Tensor& ids = lookup.bags.ids;
    if (ids.defined() && SameDevice(ids.device(), device)) return ids.device();
  }
  const std::optional<Device> own =
      group == nullptr ? std::nullopt : group->device();
  if (own && SameDevice(*own, device)) return *own;
  return DeviceRuntime::Resolve(device);
}

}  // namespace

absl::StatusOr<Device> DeviceOfTables(absl::Span<const PlannedTable> tables,
                                      absl::Span<const TableLookUp> lookups,
                                      const ProcessGroup* group,
                                      TableNumbers numbers) {
  // That of table `known`, with an index if one has any so far.
  Device device;
  size_t known = 0;
  for (size_t t = 0; t < tables.size(); ++t) {
    const Device& own = tables[t].device;
    if (t > 0 && !SameDevice(own, device)) {
      return absl::InvalidArgumentError(absl::StrCat(
          TableName(t, numbers), " is on ", own.ToString(), ", but ",
          TableName(known, numbers), " on ", device.ToString(),
          ": expected all tables of a call on one device"));
    }
    if (t > 0 && own.index < 0) continue;
    device = own;
    known = t;
  }
  if (device.is_cpu()) return device;
  if (device.index < 0) {
    SHERD_ASSIGN_OR_RETURN(device, DeviceOfReader(device, lookups, group));
  }
  SHERD_RETURN_IF_ERROR(CheckCanPool(device));
  return device;
}

absl::Status CheckOutput(const Tensor& output, absl::Span<const int64_t> size,
                         DType dtype, const Device& device) {
  if (!output.defined() ||
      (output.dtype() == dtype && output.sizes() == size &&
       output.is_contiguous() && SameDevice(output.device(), device) &&
       (output.numel() == 0 || output.writable()))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the output needs to be a contiguous, writable Tensor of ", Name(dtype),
      " and size ", FormatDims(size), " on ", device.ToString(), ", got ",
      Name(output.dtype()), " and size ", FormatDims(output.sizes()), " on ",
      output.device().ToString()));
}

bool GroupMoves(const ProcessGroup& group, const Device& device) {
  return group.device() == device &&
         group.PathOf(CollectiveOp::kAllToAllV, DType::kUInt8, ReduceOp::kSum,
                      device.type) != OperationPath::kUnsupported;
}

void MarkUsed(const Device& device, absl::Span<const TableLookUp> lookups,
              absl::Span<const PlannedTable> tables) {
  if (device.is_cpu()) return;
  const DeviceStream stream = CurrentStream(device);
  for (const TableLookUp& lookup : lookups) {
    if (const auto* const table = std::get_if<Tensor>(&lookup.table)) {
      table->storage()->UsedOn(stream);
      continue;
    }
    for (const Shard& shard :
         std::get<ShardedTensor>(lookup.table).local_shards()) {
      shard.tensor.storage()->UsedOn(stream);
    }
  }
  for (const PlannedTable& table : tables) {
    table.output.storage()->UsedOn(stream);
  }
}

}  // namespace sherd::internal
