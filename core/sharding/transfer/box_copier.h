#ifndef SHERD_CORE_SHARDING_TRANSFER_BOX_COPIER_H_
#define SHERD_CORE_SHARDING_TRANSFER_BOX_COPIER_H_

#include <cstddef>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::internal {

// Boxes to copy on devices, gathered so that each device gets one launch for
// all of them. Copies by the CPU do not use this.
//
// Threads. Not safe: queues on the current streams of the thread that calls it.
class BoxCopier {
 public:
  explicit BoxCopier(size_t element_size) : element_size_(element_size) {}
  BoxCopier(const BoxCopier&) = delete;
  BoxCopier& operator=(const BoxCopier&) = delete;

  // A copy for `device`, which reaches both ends: its own memory, and pinned
  // host memory. Sizes and strides, in elements, are read until Launch.
  void Add(const Device& device, std::byte* to,
           absl::Span<const int64_t> to_strides, const std::byte* from,
           absl::Span<const int64_t> from_strides,
           absl::Span<const int64_t> sizes);

  // As Add, between a box and its elements in row-major order.
  void Pack(const Device& device, std::byte* to, const std::byte* from,
            absl::Span<const int64_t> from_strides,
            absl::Span<const int64_t> sizes);
  void Unpack(const Device& device, std::byte* to,
              absl::Span<const int64_t> to_strides, const std::byte* from,
              absl::Span<const int64_t> sizes);

  // Queues the added copies on the current stream of each device.
  //   others  Errors of DeviceRuntime. The added copies are dropped.
  absl::Status Launch();

  // Waits until all copies that this object has launched have run.
  //   kDeadlineExceeded  The copies did not end in time.
  absl::Status Wait(Deadline deadline);

  // Called after a Launch or Wait that failed: marks memory that launched
  // copies may still use.
  void UsesStill(const Storage& memory) const;

 private:
  // One device, with the copies to be launched on it.
  struct Queue {
    Device device;
    DeviceRuntime* runtime = nullptr;
    std::vector<DeviceCopy> copies;
    // Launched, perhaps in part, and not waited for.
    bool busy = false;
  };

  Queue& QueueOf(const Device& device);
  absl::Span<const int64_t> Packed(absl::Span<const int64_t> sizes);
  absl::Status LaunchOn(Queue& queue);

  const size_t element_size_;
  // Few.
  std::vector<Queue> queues_;
  // Strides of packed ends, where they stay until Launch.
  std::deque<Dims> packed_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_TRANSFER_BOX_COPIER_H_
