#include "sherd/tools/sherd/info_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/text_table.h"
#include "sherd/core/base/version.h"

namespace sherd {
namespace {

// Names that people ask for; any other name is found as a plugin, too.
constexpr const char* kWellKnown[] = {"gloo", "local", "mpi", "nccl", "shm"};

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

}  // namespace

InfoReport GatherInfo() {
  InfoReport report = {kVersion, PluginSearchPath(), ReportPlugins()};
  for (const char* name : kWellKnown) {
    const bool known = std::any_of(
        report.plugins.begin(), report.plugins.end(),
        [&](const PluginReport& plugin) { return plugin.name == name; });
    if (known) continue;
    PluginReport missing;
    missing.name = name;
    missing.status = absl::NotFoundError(
        absl::StrCat("no ", PluginFileName(name), " in the search path"));
    report.plugins.push_back(std::move(missing));
  }
  return report;
}

std::string FormatInfo(const InfoReport& report) {
  std::string text = absl::StrCat("sherd ", report.version, "\n\nBackends\n");
  TextTable backends({{"  name"}, {"state"}, {"library"}, {"from or why not"}});
  for (const PluginReport& plugin : report.plugins) {
    const bool usable = plugin.status.ok();
    const bool found = usable || !plugin.origin.empty();
    backends.AddRow({"  " + plugin.name,
                     usable  ? "ok"
                     : found ? "unusable"
                             : "absent",
                     plugin.library_version,
                     usable ? plugin.origin : Reason(plugin.status)});
  }
  absl::StrAppend(&text, backends.ToString(),
                  "\nPlugins are searched in (SHERD_PLUGIN_PATH, then the "
                  "program's own directory)\n");
  for (const std::string& directory : report.search_path) {
    absl::StrAppend(&text, "  ", directory, "\n");
  }
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
                         {"knobs", nlohmann::json::array()}};
  for (const PluginReport& plugin : report.plugins) {
    json["backends"].push_back(
        {{"name", plugin.name},
         {"usable", plugin.status.ok()},
         {"origin", plugin.origin},
         {"library_version", plugin.library_version},
         {"reason", std::string(plugin.status.message())}});
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
