#ifndef SHERD_CORE_NN_LOOKUP_LOOKUP_PLACE_H_
#define SHERD_CORE_NN_LOOKUP_LOOKUP_PLACE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/planned_table.h"
#include "sherd/core/tensor/device.h"

namespace sherd::internal {

// Where a call's rows and results are, on this rank.
struct LookUpPlace {
  // Of all tables; with an index, or the CPU.
  Device device = {};
  // Whether the group moves memory of the device; otherwise replies travel
  // through pinned host memory. The same on all ranks.
  bool moved_by_group = false;
};

// The device of all tables, on which work can be queued; without rows on this
// rank, of the ids, or else the group's or the current one. `group` may be
// null. Ranks that succeed get devices of one type.
//   kInvalidArgument     Tables are on several devices.
//   kFailedPrecondition  The current stream of the device is being captured.
//   kUnimplemented       The device pools no rows.
//   others               Those of DeviceRuntime.
absl::StatusOr<Device> DeviceOfTables(absl::Span<const PlannedTable> tables,
                                      absl::Span<const TableLookUp> lookups,
                                      const ProcessGroup* group,
                                      TableNumbers numbers);

// Whether an output that the caller gave can hold the result of a table; one
// that is not defined can.
//   kInvalidArgument  It is of another size, dtype or device, not contiguous,
//                     or may not be written to.
absl::Status CheckOutput(const Tensor& output, absl::Span<const int64_t> size,
                         DType dtype, const Device& device);

// Whether the group can move memory of `device` from and to this rank.
bool GroupMoves(const ProcessGroup& group, const Device& device);

// After work has been queued on the current stream of `device`, which uses the
// tables and outputs of a call.
void MarkUsed(const Device& device, absl::Span<const TableLookUp> lookups,
              absl::Span<const PlannedTable> tables);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_LOOKUP_PLACE_H_
