#ifndef SHERD_SERIALIZATION_SAFETENSORS_DEVICE_BLOCKS_H_
#define SHERD_SERIALIZATION_SAFETENSORS_DEVICE_BLOCKS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/serialization/safetensors/box_pieces.h"

namespace sherd {

// The largest block that passes between a file and memory of a device at once.
// Two blocks of pinned memory are used: one is copied while the other is read
// or written.
inline constexpr int64_t kDeviceBlockBytes = int64_t{4} << 20;

// Two blocks of pinned memory, and copies between them and boxes on a device.
// The stream is the current one of the thread that creates it: work that was
// queued there before precedes the copies. Not thread-safe.
//
// Errors. Of DeviceRuntime.
class DeviceBlocks {
 public:
  // The bytes of a block that so many bytes of any elements take.
  static constexpr int64_t RoomFor(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // A box on the device, and where its elements are in a block, row-major.
  struct BoxCopy {
    std::byte* data = nullptr;
    // Of the box; if it is not contiguous, its sizes and strides.
    int64_t bytes = 0;
    Dims sizes;
    Dims strides;
    size_t element_size = 1;
    // In the block: a sum of RoomFor the boxes before it.
    int64_t offset = 0;

    BoxCopy(const BoxPiece& piece, size_t element_size, int64_t offset);
  };

  static absl::StatusOr<DeviceBlocks> Create(const Device& device,
                                             int64_t block_bytes);
  DeviceBlocks(DeviceBlocks&&) noexcept;
  // Waits for the copies, which use the blocks and the boxes.
  ~DeviceBlocks();

  const Device& device() const { return stream_.device; }
  // Whether the current stream is the one that copies.
  bool IsOn(const Device& device) const;
  int64_t block_bytes() const { return block_bytes_; }
  std::byte* data(size_t block) const {
    return static_cast<std::byte*>(blocks_[block].memory->data());
  }

  // Queue the copies of a block, those that are short or scattered in one
  // launch. Nothing else is queued for it that was not waited for.
  absl::Status CopyToHost(size_t block, absl::Span<const BoxCopy> copies);
  absl::Status CopyToDevice(size_t block, absl::Span<const BoxCopy> copies);
  // Waits for the copies of a block.
  absl::Status Await(size_t block);

 private:
  static constexpr int64_t kAlignment = 64;

  struct Block {
    std::shared_ptr<Storage> memory;
    // Behind the copies that were queued last; null before the first.
    DeviceEvent event = nullptr;
    // Whether some were not waited for.
    bool is_busy = false;
  };

  DeviceBlocks() = default;
  absl::Status Copy(size_t block, absl::Span<const BoxCopy> copies,
                    bool to_host);

  DeviceRuntime* runtime_ = nullptr;
  DeviceStream stream_;
  int64_t block_bytes_ = 0;
  std::array<Block, 2> blocks_;
};

// Bytes on their way to boxes on devices. Boxes of many tensors share a block.
// Not thread-safe.
class DeviceWriter {
 public:
  // `fill` is called before bytes are copied, and completes all that were
  // taken. Null: they are complete when Take or Flush is called next.
  explicit DeviceWriter(std::function<absl::Status()> fill = nullptr,
                        int64_t block_bytes = kDeviceBlockBytes)
      : fill_(std::move(fill)), block_bytes_(block_bytes) {}
  DeviceWriter(const DeviceWriter&) = delete;
  DeviceWriter& operator=(const DeviceWriter&) = delete;

  // Memory for the bytes of a piece of a box on `device`, at most block_bytes,
  // valid until `fill` returns, or without one until the next call. The storage
  // of the box must live until Flush.
  //   others  Of `fill` and DeviceRuntime, for what was taken before.
  absl::StatusOr<absl::Span<std::byte>> Take(const Device& device,
                                             const BoxPiece& piece,
                                             size_t element_size);
  // Copies what was taken, and waits. Without anything on a device it does
  // nothing.
  absl::Status Flush();

 private:
  absl::Status Submit();

  const std::function<absl::Status()> fill_;
  const int64_t block_bytes_;
  std::optional<DeviceBlocks> blocks_;
  // The block that is being filled, its pieces, and their bytes.
  size_t turn_ = 0;
  std::vector<DeviceBlocks::BoxCopy> taken_;
  int64_t used_ = 0;
};

// Calls `visit` for pieces of a box on a device, by ascending offset, each of
// at most kDeviceBlockBytes, and stops at its first error.
absl::Status ForEachDevicePiece(
    const BoxInArray& box,
    absl::FunctionRef<absl::Status(const BoxPiece&)> visit);

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
