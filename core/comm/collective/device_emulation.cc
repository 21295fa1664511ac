#include "sherd/core/comm/collective/device_emulation.h"

#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device_stream.h"

namespace sherd::internal {

DeviceEmulation::DeviceEmulation(DeviceRuntime& runtime,
                                 NativeOperations native, int rank, int size)
    : Emulation(native, rank, size), runtime_(runtime) {}

absl::Status DeviceEmulation::Run(const Collective& desc,
                                  const DeviceStream& stream, Post post) {
  stream_ = stream;
  // Memory is taken and given back in the order of the stream.
  const ScopedStream current(stream);
  const absl::Status status = Emulation::Run(desc, post);
  GiveBack();
  return status;
}

absl::StatusOr<std::byte*> DeviceEmulation::Scratch(size_t bytes) {
  if (scratch_bytes_ < bytes) {
    GiveBack();
    SHERD_ASSIGN_OR_RETURN(allocator_, runtime_.MemoryOf(stream_.device.index));
    SHERD_ASSIGN_OR_RETURN(scratch_,
                           allocator_->Allocate(bytes, Storage::kAlignment));
    scratch_bytes_ = bytes;
  }
  return static_cast<std::byte*>(scratch_);
}

absl::Status DeviceEmulation::Reduce(ReduceOp op, DType dtype, void* out,
                                     absl::Span<const void* const> ins,
                                     size_t count, int divisor) {
  return runtime_.Reduce(stream_, dtype, static_cast<int>(op), out, ins, count,
                         divisor);
}

void DeviceEmulation::GiveBack() {
  if (scratch_ == nullptr) return;
  allocator_->Deallocate(scratch_, scratch_bytes_);
  scratch_ = nullptr;
  scratch_bytes_ = 0;
}

}  // namespace sherd::internal
