#include "sherd/tools/sherd/info/info_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "sherd/tools/sherd/info/info_report.h"

namespace sherd {

void AddInfoCommand(CLI::App& app, int& exit_code) {
  CLI::App* const info = app.add_subcommand(
      "info",
      "Show version, backends, devices and why others are not usable, knobs");
  auto json = std::make_shared<bool>(false);
  info->add_flag("--json", *json, "Print one JSON object");
  info->callback([json, &exit_code] {
    const InfoReport report = GatherInfo();
    if (*json) {
      std::printf("%s\n", InfoToJson(report).c_str());
    } else {
      std::printf("%s", FormatInfo(report).c_str());
    }
    exit_code = 0;
  });
}

}  // namespace sherd
