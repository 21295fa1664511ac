#ifndef SHERD_BACKENDS_HOST_PLUGIN_DEVICE_H_
#define SHERD_BACKENDS_HOST_PLUGIN_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/backends/device_abi.h"
#include "sherd/core/tensor/device_runtime.h"

namespace sherd::internal {

// A device plugin's table as the DeviceRuntime of core/tensor.

// Returns whether the table has a name, a type that this host knows, and every
// function that is not optional.
bool IsComplete(const sherd_device_v0& table);

class PluginDevice final : public DeviceRuntime {
 public:
  // `table` is complete and lives forever.
  PluginDevice(const sherd_device_v0& table, std::string origin)
      : table_(table), origin_(std::move(origin)) {}

  absl::string_view name() const { return table_.name; }

  DeviceType type() const override {
    return static_cast<DeviceType>(table_.device_type);
  }
  absl::string_view origin() const override { return origin_; }
  std::string library_version() const override;
  absl::Status Probe() override;

  absl::StatusOr<int> DeviceCount() override;
  absl::StatusOr<DeviceProperties> Properties(int device) override;
  absl::StatusOr<int> CurrentDevice() override;
  absl::Status SetCurrentDevice(int device) override;

  absl::StatusOr<DeviceMemoryStatistics> MemoryStatistics(int device) override;
  absl::Status Trim() override;
  absl::StatusOr<std::optional<Device>> Locate(const void* data) override;

  absl::StatusOr<DeviceStream> CreateStream(int device,
                                            bool high_priority) override;
  absl::StatusOr<bool> IsCapturing(const DeviceStream& stream) override;

  absl::StatusOr<DeviceEvent> TakeEvent(int device) override;
  void ReturnEvent(int device, DeviceEvent event) override;
  absl::Status RecordEvent(DeviceEvent event,
                           const DeviceStream& stream) override;
  absl::Status WaitEvent(const DeviceStream& stream,
                         DeviceEvent event) override;
  absl::StatusOr<bool> QueryEvent(DeviceEvent event) override;

  absl::Status CopyBytes(const DeviceStream& stream, void* dst, const void* src,
                         size_t bytes) override;
  absl::Status Copy(const DeviceStream& stream,
                    absl::Span<const DeviceCopy> copies) override;
  absl::Status Fill(const DeviceStream& stream,
                    const DeviceFill& fill) override;
  absl::Status FillRandom(const DeviceStream& stream,
                          const DeviceRandom& random) override;
  absl::Status Reduce(const DeviceStream& stream, DType dtype, int reduction,
                      void* out, absl::Span<const void* const> ins,
                      uint64_t count, int divisor) override;
  absl::Status PoolRows(const DeviceStream& stream,
                        const DeviceRowPooling& pooling) override;

  absl::StatusOr<DeviceMemoryHandle> Export(int device, const void* data,
                                            size_t bytes) override;
  absl::StatusOr<void*> Import(int device,
                               const DeviceMemoryHandle& handle) override;
  void Close(int device, void* data) override;
  absl::StatusOr<bool> Reach(int device, int owner) override;

  void PushRange(const char* name) override;
  void PopRange() override;

 protected:
  absl::StatusOr<void*> AllocateOn(const DeviceStream& stream,
                                   size_t bytes) override;
  absl::Status DeallocateOn(const DeviceStream& stream, void* data,
                            size_t bytes) override;
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override;
  absl::Status DeallocatePinned(void* data, size_t bytes) override;
  absl::StatusOr<void*> AllocateShared(int device, size_t bytes) override;
  absl::Status DeallocateShared(int device, void* data, size_t bytes) override;
  void EndStream(const DeviceStream& stream) override;

 private:
  // Returns OK if there is a device with that number.
  absl::Status CheckIndex(int device);
  absl::Status Lacks(absl::string_view what) const;

  const sherd_device_v0& table_;
  const std::string origin_;
  // The number of devices; -1 until it is known. It never changes.
  std::atomic<int> count_ = -1;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_HOST_PLUGIN_DEVICE_H_
