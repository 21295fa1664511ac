#include "sherd/backends/device_loader.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/backends/plugin.h"
#include "sherd/backends/plugin_call.h"
#include "sherd/backends/plugin_device.h"
#include "sherd/backends/plugin_host.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

using internal::PluginDevice;
using StaticDevicePlugin = internal::StaticPlugin<sherd_device_v0>;

constexpr absl::string_view kFilePrefix = "libsherd_device_";
constexpr char kEntry[] = "sherd_get_device_v0";
constexpr absl::string_view kLinkedStatically = "linked statically";

// The plugin's table, or null.
absl::StatusOr<const sherd_device_v0*> CallEntry(sherd_get_device_v0_fn entry,
                                                 absl::string_view origin) {
  const sherd_device_v0* table = nullptr;
  sherd_error_v0 error = internal::NoError();
  if (internal::Guarded(&error, [&] {
        table = entry(&internal::PluginHost());
        return SHERD_OK;
      }) != SHERD_OK) {
    return absl::FailedPreconditionError(
        absl::StrCat(origin, ": ", error.text));
  }
  return table;
}

absl::StatusOr<std::unique_ptr<PluginDevice>> Adapt(
    const sherd_device_v0* table, std::string origin) {
  if (table == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(origin,
                     ": the device plugin says that it cannot work with device "
                     "line ",
                     SHERD_ABI_MAJOR, ".", SHERD_ABI_MINOR));
  }
  // Size and version are the only fields that every version has.
  if (table->struct_size < offsetof(sherd_device_v0, next) ||
      table->major != SHERD_ABI_MAJOR) {
    return absl::FailedPreconditionError(absl::StrCat(
        origin, ": built for device line ", table->major, ".", table->minor,
        ", expected ", SHERD_ABI_MAJOR, ".1 to ", SHERD_ABI_MAJOR, ".",
        SHERD_ABI_MINOR, "; rebuild the plugin or the program"));
  }
  if (!internal::IsComplete(*table)) {
    return absl::FailedPreconditionError(absl::StrCat(
        origin, ": the device plugin's table has ", table->struct_size,
        " bytes and lacks its name, a type of device that is known, or a "
        "function, expected at least ",
        sizeof(sherd_device_v0), " bytes and all of them"));
  }
  return std::make_unique<PluginDevice>(*table, std::move(origin));
}

absl::StatusOr<std::unique_ptr<PluginDevice>> AdaptEntry(
    sherd_get_device_v0_fn entry, std::string origin) {
  SHERD_ASSIGN_OR_RETURN(const sherd_device_v0* const table,
                         CallEntry(entry, origin));
  return Adapt(table, std::move(origin));
}

absl::StatusOr<std::unique_ptr<PluginDevice>> LoadFile(
    const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(void* const entry,
                         internal::OpenPluginFile(path, kEntry));
  return AdaptEntry(reinterpret_cast<sherd_get_device_v0_fn>(entry), path);
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> LoadForRuntime(DeviceType type) {
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<DeviceRuntime> runtime,
                         LoadDevice(Name(type), PluginSearchPath()));
  if (runtime->type() != type) {
    return absl::FailedPreconditionError(
        absl::StrCat(runtime->origin(), ": the plugin is for devices of type ",
                     Name(runtime->type()), ", expected ", Name(type)));
  }
  return runtime;
}

// Without a device that works this is all there is to say.
DevicePluginReport ReportOn(
    std::string name, std::string origin,
    const absl::StatusOr<std::unique_ptr<PluginDevice>>& loaded) {
  DevicePluginReport report = {
      std::move(name), std::move(origin), "", loaded.status(), {}};
  if (!loaded.ok()) return report;
  PluginDevice& plugin = **loaded;
  report.name = std::string(plugin.name());
  report.status = plugin.Probe();
  report.library_version = plugin.library_version();
  if (!report.status.ok()) return report;
  const absl::StatusOr<int> count = plugin.DeviceCount();
  if (!count.ok()) {
    report.status = count.status();
    return report;
  }
  for (int i = 0; i < *count; ++i) {
    report.devices.push_back({{plugin.type(), i}, plugin.Properties(i)});
  }
  return report;
}

[[maybe_unused]] const bool kInstalled = [] {
  DeviceRuntime::SetLoader(LoadForRuntime);
  return true;
}();

}  // namespace

std::string DevicePluginFileName(absl::string_view name) {
  return absl::StrCat(kFilePrefix, name, ".so");
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> AdaptDevice(
    const sherd_device_v0* table, std::string origin) {
  return Adapt(table, std::move(origin));
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> LoadDevicePlugin(
    const std::string& path) {
  return LoadFile(path);
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> LoadDevice(
    absl::string_view name, absl::Span<const std::string> directories) {
  if (!internal::IsPluginName(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("There is no device plugin \"", name,
                     "\": a name may hold a-z, 0-9 and '_' only"));
  }
  for (const auto* plugin = StaticDevicePlugin::Head(); plugin != nullptr;
       plugin = plugin->next) {
    const absl::StatusOr<const sherd_device_v0*> table =
        CallEntry(plugin->entry, kLinkedStatically);
    if (table.ok() && *table != nullptr && (*table)->name != nullptr &&
        (*table)->name == name) {
      return Adapt(*table, std::string(kLinkedStatically));
    }
  }
  const absl::StatusOr<std::string> path =
      internal::FindPluginFile(DevicePluginFileName(name), directories);
  if (!path.ok()) {
    return absl::NotFoundError(absl::StrCat("There is no device plugin ", name,
                                            ". ", path.status().message()));
  }
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<PluginDevice> device, LoadFile(*path));
  if (device->name() != name) {
    return absl::FailedPreconditionError(
        absl::StrCat(*path, " holds the device plugin \"", device->name(),
                     "\", expected \"", name, "\""));
  }
  return device;
}

std::vector<DevicePluginReport> ReportDevices() {
  std::vector<DevicePluginReport> reports;
  for (const auto* plugin = StaticDevicePlugin::Head(); plugin != nullptr;
       plugin = plugin->next) {
    const std::string origin(kLinkedStatically);
    reports.push_back(
        ReportOn("(unnamed)", origin, AdaptEntry(plugin->entry, origin)));
  }
  for (const internal::PluginFile& file :
       internal::ListPluginFiles(kFilePrefix)) {
    reports.push_back(ReportOn(file.name, file.path, LoadFile(file.path)));
  }
  return reports;
}

}  // namespace sherd
