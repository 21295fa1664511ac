#include "sherd/tools/sherd/checkpoint/recover_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sherd/core/base/units.h"
#include "sherd/serialization/checkpoint_recover.h"
#include "sherd/tools/sherd/command_error.h"

namespace sherd {

void AddRecoverCommand(CLI::App& app, int& exit_code) {
  CLI::App* const recover = app.add_subcommand(
      "recover",
      "Rebuild the lost manifest of a checkpoint from its data files: exit "
      "code "
      "0 if there is one again, otherwise 1 and what is missing");
  auto path = std::make_shared<std::string>();
  recover->add_option("DIR", *path, "The directory of the checkpoint")
      ->required();
  recover->callback([path, &exit_code] {
    const absl::StatusOr<RecoverReport> report = RecoverManifest(*path);
    if (!report.ok()) {
      exit_code = PrintCommandError("recover", report.status());
      return;
    }
    for (const std::string& reason : report->passed_over) {
      std::printf("passed over: %s\n", reason.c_str());
    }
    std::printf(
        "%s: recovered: save %s, %s tensors in %s files, %s bytes "
        "checked\n",
        path->c_str(), report->save_id.c_str(),
        FormatCount(report->tensors).c_str(),
        FormatCount(report->files).c_str(), FormatCount(report->bytes).c_str());
    exit_code = 0;
  });
}

}  // namespace sherd
