#ifndef SHERD_RPC_DEVICES_DEVICE_STAGING_H_
#define SHERD_RPC_DEVICES_DEVICE_STAGING_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/payload.h"

// Copies between devices and the host memory in which tensors travel. Device
// errors are those of core/tensor/device_runtime.h.

namespace sherd::internal {

// Whether the tensor has data on a device other than the CPU.
bool IsOnDevice(const Tensor& tensor);
bool AnyOnDevice(absl::Span<const Tensor> tensors);

// A contiguous tensor in host memory that will be copied to `device`: pinned if
// that is not the CPU.
//   kFailedPrecondition  There is no such device here.
absl::StatusOr<Tensor> EmptyForCopyTo(const Device& device,
                                      absl::Span<const int64_t> sizes,
                                      DType dtype);

// The work that a thread has queued for tensors on devices: on its current
// stream of each of these devices, up to now.
//
// Threads. Movable to another thread, which may wait.
class QueuedWork {
 public:
  //   kFailedPrecondition  A stream is being captured into a graph.
  static absl::StatusOr<QueuedWork> For(absl::Span<const Tensor> tensors);

  QueuedWork(QueuedWork&&) = default;
  QueuedWork& operator=(QueuedWork&&) = delete;
  ~QueuedWork();

  // Waits until it has run.
  //   kDeadlineExceeded  It has not run by the deadline.
  absl::Status Await(Deadline deadline) const;

 private:
  struct Mark {
    DeviceRuntime* runtime;
    int device;
    DeviceEvent event;
  };

  QueuedWork() = default;

  std::vector<Mark> marks_;
};

// Waits until what the calling thread has queued for the tensors has run. As
// QueuedWork.
absl::Status AwaitQueued(absl::Span<const Tensor> tensors, Deadline deadline);

// Replaces tensors on devices by contiguous copies in pinned memory, which
// reflect the work that the calling thread has queued for them so far.
//   kDeadlineExceeded    The devices have not run it by the deadline.
//   kFailedPrecondition  As QueuedWork.
absl::Status CopyToHost(absl::Span<Tensor> tensors, Deadline deadline);

// Replaces tensors in host memory by copies on payload.devices, queued on the
// calling thread's current streams, and clears that list.
absl::Status CopyToDevices(Payload& payload);

}  // namespace sherd::internal

#endif  // SHERD_RPC_DEVICES_DEVICE_STAGING_H_
