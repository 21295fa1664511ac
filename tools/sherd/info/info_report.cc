#include "sherd/tools/sherd/info/info_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/io_engine.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/text_table.h"
#include "sherd/core/base/version.h"

namespace sherd {
namespace {

// Well-known names; any other name is found as a plugin, too.
constexpr const char* kWellKnown[] = {"gloo", "local", "mpi", "nccl", "shm"};
constexpr const char* kWellKnownDevices[] = {"cuda"};

const char* StabilityName(KnobStability stability) {
  return stability == KnobStability::kStable ? "stable" : "debug";
}

// Value and origin.
std::pair<std::string, std::string> ValueOf(const KnobInfo& knob) {
  const std::optional<std::string> value = GetKnob(knob.knob);
  if (value) return {*value, "environment"};
  return {knob.default_text, "default"};
}

std::string Reason(const absl::Status& status) {
  return absl::StrReplaceAll(std::string(status.message()), {{"\n", "; "}});
}

// Adds well-known plugins that are not there.
template <typename Report, size_t kCount>
void AddMissing(const char* const (&names)[kCount],
                std::string (*file_name)(absl::string_view name),
                std::vector<Report>& reports) {
  for (const char* name : names) {
    const bool known =
        std::any_of(reports.begin(), reports.end(),
                    [&](const Report& report) { return report.name == name; });
    if (known) continue;
    Report missing;
    missing.name = name;
    missing.status = absl::NotFoundError(
        absl::StrCat("no ", file_name(name), " in the search path"));
    reports.push_back(std::move(missing));
  }
}

// "ok", "unusable" (and why) or "absent".
template <typename Report>
std::vector<std::string> Row(const Report& report) {
  const bool usable = report.status.ok();
  const bool found = usable || !report.origin.empty();
  return {"  " + report.name,
          usable  ? "ok"
          : found ? "unusable"
                  : "absent",
          report.library_version,
          usable ? report.origin : Reason(report.status)};
}

template <typename Report>
nlohmann::json ToJson(const Report& report) {
  return {{"name", report.name},
          {"usable", report.status.ok()},
          {"origin", report.origin},
          {"library_version", report.library_version},
          {"reason", std::string(report.status.message())}};
}

std::string Gibibytes(uint64_t bytes) {
  return absl::StrFormat("%.1f GiB",
                         static_cast<double>(bytes) / (uint64_t{1} << 30));
}

std::string FormatDevices(const std::vector<DevicePluginReport>& plugins) {
  TextTable table({{"  device"}, {"state"}, {"driver"}, {"from or why not"}});
  TextTable devices({{"  device"},
                     {"bus"},
                     {"memory", TextTable::Align::kRight},
                     {"compute"},
                     {"name or why not"}});
  for (const DevicePluginReport& plugin : plugins) {
    table.AddRow(Row(plugin));
    for (const DeviceReport& device : plugin.devices) {
      const std::string name = "  " + device.device.ToString();
      if (!device.properties.ok()) {
        devices.AddRow({name, "", "", "", Reason(device.properties.status())});
        continue;
      }
      const DeviceProperties& properties = *device.properties;
      devices.AddRow({name, properties.bus_id,
                      Gibibytes(properties.total_bytes),
                      absl::StrCat(properties.compute_major, ".",
                                   properties.compute_minor),
                      properties.name});
    }
  }
  return absl::StrCat(table.ToString(), devices.empty() ? "" : "\n",
                      devices.empty() ? "" : devices.ToString());
}

nlohmann::json DevicesToJson(const DevicePluginReport& plugin) {
  nlohmann::json json = nlohmann::json::array();
  for (const DeviceReport& device : plugin.devices) {
    nlohmann::json entry = {
        {"device", device.device.ToString()},
        {"usable", device.properties.ok()},
        {"reason", std::string(device.properties.status().message())}};
    if (device.properties.ok()) {
      const DeviceProperties& properties = *device.properties;
      entry["name"] = properties.name;
      entry["bus_id"] = properties.bus_id;
      entry["total_bytes"] = properties.total_bytes;
      entry["compute_capability"] =
          absl::StrCat(properties.compute_major, ".", properties.compute_minor);
      entry["multiprocessors"] = properties.multiprocessors;
    }
    json.push_back(std::move(entry));
  }
  return json;
}

}  // namespace

InfoReport GatherInfo(const std::string& directory) {
  InfoReport report = {kVersion, PluginSearchPath(), ReportPlugins(),
                       ReportDevices(),
                       FileReport{IoEngine::Global().Describe(), directory,
                                  DescribeDirectReads(directory)}};
  AddMissing(kWellKnown, PluginFileName, report.plugins);
  AddMissing(kWellKnownDevices, DevicePluginFileName, report.devices);
  return report;
}

std::string FormatInfo(const InfoReport& report) {
  std::string text = absl::StrCat("sherd ", report.version, "\n\nBackends\n");
  TextTable backends({{"  name"}, {"state"}, {"library"}, {"from or why not"}});
  for (const PluginReport& plugin : report.plugins) {
    backends.AddRow(Row(plugin));
  }
  absl::StrAppend(&text, backends.ToString(), "\nDevices\n",
                  FormatDevices(report.devices),
                  "\nPlugins are searched in (SHERD_PLUGIN_PATH, then the "
                  "program's own directory)\n");
  for (const std::string& directory : report.search_path) {
    absl::StrAppend(&text, "  ", directory, "\n");
  }
  absl::StrAppend(&text, "\nFiles that are not in the page cache\n  read by ",
                  report.files.reads, "\n  in ", report.files.directory, ": ",
                  report.files.direct_reads, "\n");
  text += "\nKnobs (environment variables)\n";
  TextTable knobs({{"  variable"}, {"value"}, {"origin"}, {""}, {"meaning"}});
  for (const KnobInfo& knob : AllKnobs()) {
    const auto [value, origin] = ValueOf(knob);
    knobs.AddRow({absl::StrCat("  ", knob.variable), value, origin,
                  StabilityName(knob.stability), knob.help});
  }
  return text + knobs.ToString();
}

std::string InfoToJson(const InfoReport& report) {
  nlohmann::json json = {{"version", report.version},
                         {"search_path", report.search_path},
                         {"backends", nlohmann::json::array()},
                         {"device_plugins", nlohmann::json::array()},
                         {"files",
                          {{"reads", report.files.reads},
                           {"directory", report.files.directory},
                           {"direct_reads", report.files.direct_reads}}},
                         {"knobs", nlohmann::json::array()}};
  for (const PluginReport& plugin : report.plugins) {
    json["backends"].push_back(ToJson(plugin));
  }
  for (const DevicePluginReport& plugin : report.devices) {
    nlohmann::json entry = ToJson(plugin);
    entry["devices"] = DevicesToJson(plugin);
    json["device_plugins"].push_back(std::move(entry));
  }
  for (const KnobInfo& knob : AllKnobs()) {
    const auto [value, origin] = ValueOf(knob);
    json["knobs"].push_back({{"variable", knob.variable},
                             {"value", value},
                             {"origin", origin},
                             {"type", knob.type},
                             {"stability", StabilityName(knob.stability)},
                             {"meaning", knob.help}});
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace sherd
