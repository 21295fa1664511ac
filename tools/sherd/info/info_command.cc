#include "sherd/tools/sherd/info/info_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "sherd/tools/sherd/info/info_report.h"

namespace sherd {

void AddInfoCommand(CLI::App& app, int& exit_code) {
  CLI::App* const info =
      app.add_subcommand("info",
                         "Show version, backends, devices and why others are "
                         "not usable, how files "
                         "are read, knobs");
  auto json = std::make_shared<bool>(false);
  auto directory = std::make_shared<std::string>(".");
  info->add_flag("--json", *json, "Print one JSON object");
  info->add_option("--dir", *directory,
                   "A directory of the file system to describe")
      ->capture_default_str();
  info->callback([json, directory, &exit_code] {
    const InfoReport report = GatherInfo(*directory);
    if (*json) {
      std::printf("%s\n", InfoToJson(report).c_str());
    } else {
      std::printf("%s", FormatInfo(report).c_str());
    }
    exit_code = 0;
  });
}

}  // namespace sherd
