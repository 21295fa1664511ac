#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "sherd/core/base/knobs.h"
#include "sherd/core/base/version.h"
#include "sherd/tools/sherd/checkpoint/inspect_command.h"
#include "sherd/tools/sherd/checkpoint/verify_command.h"
#include "sherd/tools/sherd/explain/explain_command.h"
#include "sherd/tools/sherd/flight/flight_command.h"
#include "sherd/tools/sherd/info/info_command.h"
#include "sherd/tools/sherd/quickstart/make_model_command.h"
#include "sherd/tools/sherd/quickstart/quickstart_command.h"
#include "sherd/tools/sherd/run/run_command.h"

namespace {

constexpr int kUsageExitCode = 2;

constexpr char kDescription[] =
    "Sherd keeps tensors in pieces, on many ranks. This is its command line:\n"
    "run programs as several ranks, look into checkpoints, check them.";

// A descriptor that was closed would be given to the next file that is opened,
// and messages would end up in it.
void OpenStandardStreams() {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

// CLI11 would only say that a subcommand is missing.
bool IsUnknownCommand(const CLI::App& app, const std::string& word) {
  if (word.starts_with('-')) return false;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_name() == word) return false;
  }
  return true;
}

std::string VisibleCommands(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_group().empty()) continue;
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

// "bazel run" starts programs elsewhere; relative paths are the caller's. Ranks
// that are started from here must not do it again.
void ChangeToCallersDirectory() {
  const std::optional<std::string> directory =
      sherd::GetKnob(sherd::Knob::kBuildWorkingDirectory);
  if (!directory || chdir(directory->c_str()) != 0) return;
  unsetenv(sherd::GetKnobInfo(sherd::Knob::kBuildWorkingDirectory).variable);
}

int Main(std::vector<std::string> arguments) {
  const std::vector<std::string> program = sherd::TakeProgram(arguments);
  CLI::App app(kDescription, "sherd");
  app.set_version_flag("--version", std::string("sherd ") + sherd::kVersion);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  int exit_code = 0;
  sherd::AddRunCommand(app, program, exit_code);
  sherd::AddInfoCommand(app, exit_code);
  sherd::AddInspectCommand(app, exit_code);
  sherd::AddVerifyCommand(app, exit_code);
  sherd::AddExplainCommand(app, exit_code);
  sherd::AddMakeModelCommand(app, exit_code);
  sherd::AddFlightCommand(app, exit_code);
  sherd::AddQuickstartCommand(app, exit_code);
  if (arguments.empty()) {
    std::fputs(app.help().c_str(), stderr);
    return kUsageExitCode;
  }
  if (IsUnknownCommand(app, arguments[0])) {
    std::fprintf(stderr, "sherd: \"%s\" is no command, expected one of %s\n",
                 arguments[0].c_str(), VisibleCommands(app).c_str());
    return kUsageExitCode;
  }
  // CLI11 takes them from the end.
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageExitCode;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  OpenStandardStreams();
  ChangeToCallersDirectory();
  return Main(std::vector<std::string>(argv + 1, argv + argc));
}
