#ifndef SHERD_CORE_COMM_CHANNEL_SCOPED_DEVICE_H_
#define SHERD_CORE_COMM_CHANNEL_SCOPED_DEVICE_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"

namespace sherd::internal {

// Makes a device, which has an index, the calling thread's current one, as
// backends require, and restores the previous one.
class ScopedDevice {
 public:
  ScopedDevice(DeviceRuntime& runtime, const Device& device)
      : runtime_(runtime) {
    const absl::StatusOr<int> before = runtime_.CurrentDevice();
    status_ = before.status();
    if (!before.ok()) return;
    // Set it even if the number is equal: the vendor's library may not have a
    // current device yet.
    status_ = runtime_.SetCurrentDevice(device.index);
    if (*before != device.index) before_ = *before;
  }
  ~ScopedDevice() {
    if (before_) runtime_.SetCurrentDevice(*before_).IgnoreError();
  }
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

  // OK if the device is current.
  const absl::Status& status() const { return status_; }

 private:
  DeviceRuntime& runtime_;
  std::optional<int> before_;
  absl::Status status_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_SCOPED_DEVICE_H_
