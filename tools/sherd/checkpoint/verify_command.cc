#include "sherd/tools/sherd/checkpoint/verify_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/tools/sherd/checkpoint/inspection.h"
#include "sherd/tools/sherd/checkpoint/verification.h"
#include "sherd/tools/sherd/command_error.h"

namespace sherd {

void AddVerifyCommand(CLI::App& app, int& exit_code) {
  CLI::App* const verify = app.add_subcommand(
      "verify",
      "Check a safetensors file or a checkpoint: exit code 0 if it is sound, "
      "otherwise 1 and the damage by file and tensor");
  auto path = std::make_shared<std::string>();
  auto step = std::make_shared<std::optional<int64_t>>();
  verify
      ->add_option("PATH", *path,
                   "A safetensors file, as a data file of a checkpoint, the "
                   "directory of one or of a series, or a manifest")
      ->required();
  verify->add_option("--step", *step, "A step of the series in the directory");
  verify->callback([path, step, &exit_code] {
    const absl::StatusOr<std::string> report =
        Verify(CheckpointFiles(), PathOfStep(*path, *step));
    if (!report.ok()) {
      exit_code = PrintCommandError("verify", report.status());
      return;
    }
    std::printf("%s\n", report->c_str());
    exit_code = 0;
  });
}

}  // namespace sherd
