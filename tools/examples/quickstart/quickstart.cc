// The steps of tools/quickstart.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/tools/examples/quickstart/quickstart_files.h"
#include "sherd/tools/examples/quickstart/quickstart_job.h"
#include "sherd/tools/sherd/command_error.h"
#include "sherd/tools/sherd/command_line.h"

namespace sherd {
namespace {

struct QuickstartOptions {
  std::string directory;
  std::string model;
  std::string preset = "gpt2";
  bool load_only = false;
};

// Standard output is the path, or the error that the caller reports.
int Prepare(const QuickstartOptions& options) {
  PrepareOptions prepare = {.directory = options.directory,
                            .load_only = options.load_only,
                            .preset = options.preset};
  if (!options.model.empty()) prepare.model = options.model;
  const absl::StatusOr<std::string> model =
      PrepareQuickstart(FileSystem::Posix(), prepare);
  std::printf("%s\n", model.ok()
                          ? model->c_str()
                          : std::string(model.status().message()).c_str());
  return model.ok() ? 0 : 1;
}

absl::Status RunHalf(QuickstartJob& job, bool save) {
  SHERD_ASSIGN_OR_RETURN(job.group, Init({}));
  if (job.group->rank() == 0) job.progress = stderr;
  if (save) {
    SHERD_RETURN_IF_ERROR(QuickstartSave(FileSystem::Posix(), job));
    return job.group->Destroy();
  }
  SHERD_ASSIGN_OR_RETURN(const QuickstartVerdict verdict,
                         QuickstartLoad(FileSystem::Posix(), job));
  SHERD_RETURN_IF_ERROR(job.group->Destroy());
  if (job.group->rank() == 0) {
    std::printf(
        "\n%s\nall tensors: %s\npicture:     %s\n\n"
        "verified: %lld tensors, %lld bytes\n",
        verdict.report.c_str(), job.paths.report_text().c_str(),
        job.paths.picture().c_str(), static_cast<long long>(verdict.tensors),
        static_cast<long long>(verdict.bytes));
  }
  return absl::OkStatus();
}

int Half(const QuickstartOptions& options, bool save) {
  QuickstartJob job = {.paths = QuickstartFiles(options.directory),
                       .model = options.model};
  const absl::Status status = RunHalf(job, save);
  if (status.ok()) return 0;
  RecordFailure(job.paths, std::string(status.message()));
  if (job.group == nullptr) return PrintCommandError("quickstart", status);
  return PrintCommandError(
      "quickstart", Annotate(status, absl::StrCat("rank ", job.group->rank())));
}

CLI::App* AddStep(CLI::App& app, const char* name, const char* text,
                  QuickstartOptions& options) {
  CLI::App* const step = app.add_subcommand(name, text);
  step->add_option("--dir", options.directory, "Folder for everything")
      ->required();
  step->add_option("--model", options.model, "A safetensors file");
  return step;
}

int Main(std::vector<std::string> arguments) {
  CLI::App app("The steps of tools/quickstart.", "quickstart");
  app.require_subcommand(1);
  QuickstartOptions options;
  int exit_code = 0;
  CLI::App* const prepare = AddStep(
      app, "prepare",
      "Make the folder and the model, check the space; print the model's path",
      options);
  prepare->add_flag("--load-only", options.load_only,
                    "Only the loading half follows");
  prepare->add_option("--preset", options.preset,
                      "Model to make if none is given");
  prepare->callback([&] { exit_code = Prepare(options); });
  AddStep(app, "save", "One rank of the saving half", options)->callback([&] {
    exit_code = Half(options, /*save=*/true);
  });
  AddStep(app, "load", "One rank of the loading half", options)->callback([&] {
    exit_code = Half(options, /*save=*/false);
  });
  return RunCommandLine(app, std::move(arguments), exit_code);
}

}  // namespace
}  // namespace sherd

int main(int argc, char** argv) {
  sherd::PrepareProgram();
  return sherd::Main(std::vector<std::string>(argv + 1, argv + argc));
}
