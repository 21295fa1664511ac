#include "sherd/core/sharding/transfer/box_copier.h"

#include <algorithm>

#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device_stream.h"

namespace sherd::internal {

BoxCopier::Queue& BoxCopier::QueueOf(const Device& device) {
  const auto found =
      std::find_if(queues_.begin(), queues_.end(),
                   [&](const Queue& queue) { return queue.device == device; });
  if (found != queues_.end()) return *found;
  Queue& queue = queues_.emplace_back();
  queue.device = device;
  return queue;
}

absl::Span<const int64_t> BoxCopier::Packed(absl::Span<const int64_t> sizes) {
  return packed_.emplace_back(ContiguousStrides(sizes));
}

void BoxCopier::Add(const Device& device, std::byte* to,
                    absl::Span<const int64_t> to_strides, const std::byte* from,
                    absl::Span<const int64_t> from_strides,
                    absl::Span<const int64_t> sizes) {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return;
  QueueOf(device).copies.push_back({.dst = to,
                                    .dst_strides = to_strides,
                                    .src = from,
                                    .src_strides = from_strides,
                                    .sizes = sizes,
                                    .element_size = element_size_});
}

void BoxCopier::Pack(const Device& device, std::byte* to, const std::byte* from,
                     absl::Span<const int64_t> from_strides,
                     absl::Span<const int64_t> sizes) {
  Add(device, to, Packed(sizes), from, from_strides, sizes);
}

void BoxCopier::Unpack(const Device& device, std::byte* to,
                       absl::Span<const int64_t> to_strides,
                       const std::byte* from, absl::Span<const int64_t> sizes) {
  Add(device, to, to_strides, from, Packed(sizes), sizes);
}

absl::Status BoxCopier::LaunchOn(Queue& queue) {
  if (queue.copies.empty()) return absl::OkStatus();
  if (queue.runtime == nullptr) {
    SHERD_ASSIGN_OR_RETURN(queue.runtime,
                           DeviceRuntime::For(queue.device.type));
  }
  // Also after an error: some may have been queued.
  queue.busy = true;
  return queue.runtime->Copy(CurrentStream(queue.device), queue.copies);
}

absl::Status BoxCopier::Launch() {
  absl::Status status;
  for (Queue& queue : queues_) {
    if (status.ok()) status = LaunchOn(queue);
    queue.copies.clear();
  }
  packed_.clear();
  return status;
}

absl::Status BoxCopier::Wait(Deadline deadline) {
  for (Queue& queue : queues_) {
    if (!queue.busy) continue;
    SHERD_RETURN_IF_ERROR(
        queue.runtime->Synchronize(CurrentStream(queue.device), deadline));
    queue.busy = false;
  }
  return absl::OkStatus();
}

void BoxCopier::UsesStill(const Storage& memory) const {
  for (const Queue& queue : queues_) {
    if (queue.busy) memory.UsedOn(CurrentStream(queue.device));
  }
}

}  // namespace sherd::internal
