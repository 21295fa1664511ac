#ifndef SHERD_BACKENDS_HOST_DEVICE_LOADER_H_
#define SHERD_BACKENDS_HOST_DEVICE_LOADER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/backends/device_abi.h"
#include "sherd/backends/host/plugin_file.h"
#include "sherd/core/tensor/device_runtime.h"

namespace sherd {

// Linking this target installs it as the loader of DeviceRuntime, through which
// tensors find the plugins of their devices. backends:loader depends on it.

// "libsherd_device_NAME.so".
std::string DevicePluginFileName(absl::string_view name);

// Loads the device plugin `name`: linked statically, or from the first of
// `directories` that has its file. The file is checked before it is opened,
// since opening a truncated one ends the process; it is never closed.
//   kNotFound            "There is no device plugin NAME"; lists what was
//                        searched.
//   kFailedPrecondition  The file exists but is not usable: not an ELF file for
//                        this machine, truncated, without the entry, of another
//                        version, or incomplete. The message names the reason.
//   kInvalidArgument     A name may contain a-z, 0-9 and '_' only.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> LoadDevice(
    absl::string_view name, absl::Span<const std::string> directories);

// Loads the plugin in `path`. Errors as for LoadDevice.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> LoadDevicePlugin(
    const std::string& path);

// Wraps a table; `origin` is for messages.
//   kFailedPrecondition  The table has another version, or lacks entries.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> AdaptDevice(
    const sherd_device_v0* table, std::string origin);

struct DeviceReport {
  Device device;
  // The properties, or the error of reading them.
  absl::StatusOr<DeviceProperties> properties;
};

struct DevicePluginReport {
  std::string name;
  std::string origin;
  // The driver, and where it was found.
  std::string library_version;
  // OK, or why the plugin was not loaded or has no working device.
  absl::Status status;
  std::vector<DeviceReport> devices;
};

// Reports on all plugins that are linked statically or in the search path.
std::vector<DevicePluginReport> ReportDevices();

}  // namespace sherd

#endif  // SHERD_BACKENDS_HOST_DEVICE_LOADER_H_
