#include "sherd/tools/sherd/checkpoint/recover_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/tools/sherd/checkpoint/recovery.h"
#include "sherd/tools/sherd/command_error.h"

namespace sherd {

void AddRecoverCommand(CLI::App& app, int& exit_code) {
  CLI::App* const recover = app.add_subcommand(
      "recover",
      "Rebuild the lost manifests of a checkpoint or a series from data "
      "files: exit code 0 if all are there again, otherwise 1 and what is "
      "missing");
  auto path = std::make_shared<std::string>();
  recover
      ->add_option("DIR", *path,
                   "The directory of the checkpoint or series, or a manifest")
      ->required();
  recover->callback([path, &exit_code] {
    const Recovery recovery = Recover(CheckpointFiles(), *path);
    std::printf("%s", recovery.text.c_str());
    exit_code = recovery.status.ok()
                    ? 0
                    : PrintCommandError("recover", recovery.status);
  });
}

}  // namespace sherd
