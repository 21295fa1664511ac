#ifndef SHERD_SERIALIZATION_SAFETENSORS_DEVICE_BLOCKS_H_
#define SHERD_SERIALIZATION_SAFETENSORS_DEVICE_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/device.h"
#include "sherd/serialization/safetensors/box_pieces.h"

namespace sherd {

// The largest block that passes between a file and a box in the memory of a
// device at once. Two blocks of pinned memory are used: one is copied while the
// other is read or written.
inline constexpr int64_t kDeviceBlockBytes = int64_t{4} << 20;

// Calls `visit` with the bytes of a box whose data is on `device`, by ascending
// offset in the array, and stops at its first error. A block is in host memory
// until `visit` returns.
//
// Completion. Waits for the work queued on the device's current stream, and for
// the copies, also if this returns an error.
//   others  Of DeviceRuntime.
absl::Status ReadDeviceBox(
    const BoxInArray& box, const Device& device,
    absl::FunctionRef<absl::Status(int64_t offset,
                                   absl::Span<const std::byte> block)>
        visit);

// The reverse: `fill` writes the bytes of the array from `offset` on, as many
// as the block has.
absl::Status WriteDeviceBox(
    const BoxInArray& box, const Device& device,
    absl::FunctionRef<absl::Status(int64_t offset, absl::Span<std::byte> block)>
        fill);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_SAFETENSORS_DEVICE_BLOCKS_H_
