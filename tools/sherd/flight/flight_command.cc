#include "sherd/tools/sherd/flight/flight_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/flight/flight_analysis.h"
#include "sherd/core/comm/flight/flight_files.h"
#include "sherd/tools/sherd/command_error.h"
#include "sherd/tools/sherd/flight/flight_trace.h"

namespace sherd {
namespace {

struct FlightOptions {
  std::string directory;
  bool json = false;
  // Empty for none.
  std::string trace_file;
};

absl::Status WriteTrace(const FlightOptions& options,
                        const FlightDirectoryFiles& directory) {
  const std::string trace = FlightToChromeTrace(directory.files);
  return WriteFileAtomically(
      FileSystem::Posix(), options.trace_file,
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(trace.data()),
                          trace.size()));
}

int RunFlight(const FlightOptions& options) {
  const absl::StatusOr<FlightDirectoryFiles> directory =
      ReadFlightDirectory(FileSystem::Posix(), options.directory);
  if (!directory.ok()) return PrintCommandError("flight", directory.status());
  if (!options.trace_file.empty()) {
    const absl::Status written = WriteTrace(options, *directory);
    if (!written.ok()) return PrintCommandError("flight", written);
  }
  const FlightReport report = AnalyzeFlight(*directory);
  const std::string text = options.json ? FlightReportToJson(report) + "\n"
                                        : FormatFlightReport(report);
  std::printf("%s", text.c_str());
  return report.HasFindings() ? 1 : 0;
}

}  // namespace

void AddFlightCommand(CLI::App& app, int& exit_code) {
  CLI::App* const flight = app.add_subcommand(
      "flight",
      "Compare the ranks' flight recorder dumps: who deviated, at which call");
  flight->footer(
      "Exit code: 0 all ranks agree, 1 a rank deviated, is missing or is "
      "stuck.");
  auto options = std::make_shared<FlightOptions>();
  flight
      ->add_option("DIR", options->directory,
                   "Directory with the ranks' flight.rank-R.json")
      ->required();
  flight->add_flag("--json", options->json, "Print one JSON object");
  flight->add_option("--trace", options->trace_file,
                     "Also write all operations to this file as a trace, for "
                     "ui.perfetto.dev or chrome://tracing");
  flight->callback([options, &exit_code] { exit_code = RunFlight(*options); });
}

}  // namespace sherd
