#include "sherd/backends/host/device_loader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/backends/host/plugin_device.h"
#include "sherd/backends/host/plugin_entry.h"
#include "sherd/backends/host/plugin_file.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

using internal::PluginDevice;
using Opened = internal::PluginTable<sherd_device_v0>;

absl::StatusOr<std::unique_ptr<PluginDevice>> Adapt(
    const sherd_device_v0* table, std::string origin) {
  SHERD_RETURN_IF_ERROR(internal::CheckTable(table, origin));
  if (!internal::IsComplete(*table)) {
    return absl::FailedPreconditionError(absl::StrCat(
        origin, ": the device plugin's table has ", table->struct_size,
        " bytes and lacks its name, a type of device that is known, or a "
        "function, expected ",
        sizeof(sherd_device_v0), " bytes and all of them"));
  }
  return std::make_unique<PluginDevice>(*table, std::move(origin));
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

// The whole report, if no device works.
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
  return internal::PluginFileNameOf<sherd_device_v0>(name);
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> AdaptDevice(
    const sherd_device_v0* table, std::string origin) {
  return Adapt(table, std::move(origin));
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> LoadDevicePlugin(
    const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(Opened opened,
                         internal::OpenPlugin<sherd_device_v0>(path));
  return Adapt(opened.table, std::move(opened.origin));
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> LoadDevice(
    absl::string_view name, absl::Span<const std::string> directories) {
  if (!internal::IsPluginName(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("There is no device plugin \"", name,
                     "\": a name may hold a-z, 0-9 and '_' only"));
  }
  absl::StatusOr<Opened> found =
      internal::FindPlugin<sherd_device_v0>(name, directories);
  if (absl::IsNotFound(found.status())) {
    return absl::NotFoundError(absl::StrCat("There is no device plugin ", name,
                                            ". ", found.status().message()));
  }
  SHERD_RETURN_IF_ERROR(found.status());
  return Adapt(found->table, std::move(found->origin));
}

std::vector<DevicePluginReport> ReportDevices() {
  std::vector<DevicePluginReport> reports;
  for (auto& listed : internal::ListPlugins<sherd_device_v0>()) {
    const absl::StatusOr<std::unique_ptr<PluginDevice>> loaded =
        listed.opened.ok() ? Adapt(listed.opened->table, listed.origin)
                           : listed.opened.status();
    reports.push_back(
        ReportOn(std::move(listed.name), std::move(listed.origin), loaded));
  }
  return reports;
}

}  // namespace sherd
