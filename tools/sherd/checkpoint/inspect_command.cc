#include "sherd/tools/sherd/checkpoint/inspect_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/tools/sherd/checkpoint/inspection.h"
#include "sherd/tools/sherd/command_error.h"

namespace sherd {
namespace {

struct InspectOptions {
  std::string path;
  std::optional<int64_t> step;
  bool json = false;
  // Empty for none, "-" for standard output.
  std::string svg_file;
};

int WriteSvg(const std::string& file, const std::string& svg) {
  if (file == "-") {
    std::printf("%s", svg.c_str());
    return 0;
  }
  const absl::Status status = WriteFileAtomically(
      FileSystem::Posix(), file,
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(svg.data()),
                          svg.size()));
  if (!status.ok()) return PrintCommandError("inspect", status);
  std::printf("%s\n", file.c_str());
  return 0;
}

int RunInspect(const InspectOptions& options) {
  const absl::StatusOr<Inspection> inspection =
      Inspect(CheckpointFiles(), PathOfStep(options.path, options.step));
  if (!inspection.ok()) {
    return PrintCommandError("inspect", inspection.status());
  }
  if (!options.svg_file.empty()) {
    const absl::StatusOr<std::string> svg = InspectionToSvg(*inspection);
    if (!svg.ok()) return PrintCommandError("inspect", svg.status());
    return WriteSvg(options.svg_file, *svg);
  }
  const std::string text = options.json ? InspectionToJson(*inspection) + "\n"
                                        : FormatInspection(*inspection);
  std::printf("%s", text.c_str());
  return 0;
}

}  // namespace

void AddInspectCommand(CLI::App& app, int& exit_code) {
  CLI::App* const inspect = app.add_subcommand(
      "inspect",
      "Show what a safetensors file or a checkpoint holds, without its data");
  auto options = std::make_shared<InspectOptions>();
  inspect
      ->add_option("PATH", options->path,
                   "A safetensors file, the directory of a checkpoint or a "
                   "series, or a manifest")
      ->required();
  inspect->add_option("--step", options->step,
                      "A step of the series in the directory");
  CLI::Option* const json = inspect->add_flag(
      "--json", options->json, "Print one JSON object, shards included");
  // A flag with an optional value, so that "--svg PATH" draws PATH.
  CLI::Option* const svg = inspect->add_flag(
      "--svg{-}", options->svg_file,
      "Draw who holds what, to standard output or to a file (--svg=FILE)");
  json->excludes(svg);
  inspect->callback(
      [options, &exit_code] { exit_code = RunInspect(*options); });
}

}  // namespace sherd
