#ifndef SHERD_TOOLS_SHERD_INFO_INFO_REPORT_H_
#define SHERD_TOOLS_SHERD_INFO_INFO_REPORT_H_

#include <string>
#include <vector>

#include "sherd/backends/host/device_loader.h"
#include "sherd/backends/host/loader.h"

namespace sherd {

// What this build is and finds on this machine.
struct InfoReport {
  std::string version;
  std::vector<std::string> search_path;
  // Those that are there, then well-known ones that are not.
  std::vector<PluginReport> plugins;
  // The same of the plugins of devices.
  std::vector<DevicePluginReport> devices;
};

InfoReport GatherInfo();

// Version, plugins and why others cannot be used, devices, and every knob with
// its value and where the value comes from.
std::string FormatInfo(const InfoReport& report);

// The same as one JSON object.
std::string InfoToJson(const InfoReport& report);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_INFO_INFO_REPORT_H_
