#ifndef SHERD_TOOLS_SHERD_INFO_INFO_REPORT_H_
#define SHERD_TOOLS_SHERD_INFO_INFO_REPORT_H_

#include <string>
#include <vector>

#include "sherd/backends/host/device_loader.h"
#include "sherd/backends/host/loader.h"

namespace sherd {

// How files are read that are not in the page cache.
struct FileReport {
  // Of IoEngine::Describe().
  std::string reads;
  // A directory, and DescribeDirectReads() of it.
  std::string directory;
  std::string direct_reads;
};

// Describes this build, and what it finds on this machine.
struct InfoReport {
  std::string version;
  std::vector<std::string> search_path;
  // The plugins that exist, then well-known ones that do not.
  std::vector<PluginReport> plugins;
  // The same for the plugins of devices.
  std::vector<DevicePluginReport> devices;
  FileReport files;
};

// `directory`: of the file system whose reads are described.
InfoReport GatherInfo(const std::string& directory);

// Version, plugins and why others cannot be used, devices, how files are read,
// and every knob with its value and the origin of the value.
std::string FormatInfo(const InfoReport& report);

// The same as one JSON object.
std::string InfoToJson(const InfoReport& report);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_INFO_INFO_REPORT_H_
