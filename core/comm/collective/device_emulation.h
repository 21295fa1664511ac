#ifndef SHERD_CORE_COMM_COLLECTIVE_DEVICE_EMULATION_H_
#define SHERD_CORE_COMM_COLLECTIVE_DEVICE_EMULATION_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/collective/emulation.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::internal {

// Emulation with the memory of a device: its operations are queued on a stream.
// Scratch comes from the device's pool for each operation, so that operations
// on different streams do not share it.
class DeviceEmulation final : public Emulation {
 public:
  // `runtime` outlives it.
  DeviceEmulation(DeviceRuntime& runtime, NativeOperations native, int rank,
                  int size);

  // As Emulation::Run; `post` queues on `stream`.
  absl::Status Run(const Collective& desc, const DeviceStream& stream,
                   Post post);

 private:
  absl::StatusOr<std::byte*> Scratch(size_t bytes) override;
  absl::Status Reduce(ReduceOp op, DType dtype, void* out,
                      absl::Span<const void* const> ins, size_t count,
                      int divisor) override;
  void GiveBack();

  DeviceRuntime& runtime_;
  // Stream of the running operation.
  DeviceStream stream_;
  Allocator* allocator_ = nullptr;
  void* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_COLLECTIVE_DEVICE_EMULATION_H_
