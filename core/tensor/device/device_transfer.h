#ifndef SHERD_CORE_TENSOR_DEVICE_DEVICE_TRANSFER_H_
#define SHERD_CORE_TENSOR_DEVICE_DEVICE_TRANSFER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::internal {

// One side of a copy: elements of a tensor.
struct TransferSide {
  const Storage& storage;
  std::byte* data;
  absl::Span<const int64_t> strides;
};

// Copies a box of elements between the memory of devices, or between that of a
// device and the host's: at least one side is on a device. The box has
// elements; the two sides do not overlap.
//
// Completion. As for devices in core/tensor/tensor.h: queued on the current
// stream of dst's device, or of src's if dst is host memory; then the call
// waits.
//
// Cost. Contiguous sides: one copy. On a device a box with other strides is
// gathered or scattered by one launch; on the host through memory of the heap,
// as large as the box.
absl::Status Transfer(const TransferSide& dst, const TransferSide& src,
                      absl::Span<const int64_t> sizes, size_t element_size);

}  // namespace sherd::internal

#endif  // SHERD_CORE_TENSOR_DEVICE_DEVICE_TRANSFER_H_
