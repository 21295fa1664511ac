#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "sherd/core/base/version.h"
#include "sherd/tools/sherd/checkpoint/inspect_command.h"
#include "sherd/tools/sherd/checkpoint/recover_command.h"
#include "sherd/tools/sherd/checkpoint/verify_command.h"
#include "sherd/tools/sherd/command_line.h"
#include "sherd/tools/sherd/explain/explain_command.h"
#include "sherd/tools/sherd/flight/flight_command.h"
#include "sherd/tools/sherd/info/info_command.h"
#include "sherd/tools/sherd/run/run_command.h"

namespace {

constexpr char kDescription[] =
    "Sherd keeps tensors in pieces, on many ranks. This is its command line:\n"
    "run programs as several ranks, look into checkpoints, check them.";

// CLI11 would only report that a subcommand is missing.
bool IsUnknownCommand(const CLI::App& app, const std::string& word) {
  if (word.starts_with('-')) return false;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_name() == word) return false;
  }
  return true;
}

std::string CommandNames(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

int Main(std::vector<std::string> arguments) {
  const std::vector<std::string> program = sherd::TakeProgram(arguments);
  CLI::App app(kDescription, "sherd");
  app.set_version_flag("--version", std::string("sherd ") + sherd::kVersion);
  app.require_subcommand(1);
  int exit_code = 0;
  sherd::AddRunCommand(app, program, exit_code);
  sherd::AddInfoCommand(app, exit_code);
  sherd::AddInspectCommand(app, exit_code);
  sherd::AddVerifyCommand(app, exit_code);
  sherd::AddRecoverCommand(app, exit_code);
  sherd::AddExplainCommand(app, exit_code);
  sherd::AddFlightCommand(app, exit_code);
  if (arguments.empty()) {
    std::fputs(app.help().c_str(), stderr);
    return sherd::kUsageExitCode;
  }
  if (IsUnknownCommand(app, arguments[0])) {
    std::fprintf(stderr, "sherd: \"%s\" is not a command, expected one of %s\n",
                 arguments[0].c_str(), CommandNames(app).c_str());
    return sherd::kUsageExitCode;
  }
  return sherd::RunCommandLine(app, std::move(arguments), exit_code);
}

}  // namespace

int main(int argc, char** argv) {
  sherd::PrepareProgram();
  return Main(std::vector<std::string>(argv + 1, argv + argc));
}
