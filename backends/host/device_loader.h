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

// Linking this target is enough: it installs itself as the loader of
// DeviceRuntime, so that tensors find the plugins of their devices. It comes
// with backends:loader.

// "libsherd_device_NAME.so".
std::string DevicePluginFileName(absl::string_view name);

// The device plugin `name`: linked statically, or from the first of
// `directories` that has its file. The file is checked before it is opened,
// since opening a truncated one ends the process; it is never closed.
//   kNotFound            "There is no device plugin NAME" and what was
//                        searched.
//   kFailedPrecondition  The file is there but not usable: not an ELF file for
//                        this machine, truncated, without the entry, of
//                        another version, or incomplete. Says which.
//   kInvalidArgument     A name may hold a-z, 0-9 and '_' only.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> LoadDevice(
    absl::string_view name, absl::Span<const std::string> directories);

// Loads the plugin in `path`. Errors as above.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> LoadDevicePlugin(
    const std::string& path);

// Wraps a table; `origin` is for messages.
//   kFailedPrecondition  Another version, or entries are missing.
absl::StatusOr<std::unique_ptr<DeviceRuntime>> AdaptDevice(
    const sherd_device_v0* table, std::string origin);

struct DeviceReport {
  Device device;
  // The properties, or why there are none.
  absl::StatusOr<DeviceProperties> properties;
};

struct DevicePluginReport {
  std::string name;
  std::string origin;
  // The driver, and where it was found.
  std::string library_version;
  // OK, or why it was not loaded or no device works.
  absl::Status status;
  std::vector<DeviceReport> devices;
};

// Everything that is linked statically or lies in the search path.
std::vector<DevicePluginReport> ReportDevices();

}  // namespace sherd

#endif  // SHERD_BACKENDS_HOST_DEVICE_LOADER_H_
