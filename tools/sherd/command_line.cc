#include "sherd/tools/sherd/command_line.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/core/base/knobs.h"

namespace sherd {
namespace {

void OpenStandardStreams() {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

// Ranks that are started from here must not do it again.
void ChangeToCallersDirectory() {
  const std::optional<std::string> directory =
      GetKnob(Knob::kBuildWorkingDirectory);
  if (!directory || chdir(directory->c_str()) != 0) return;
  unsetenv(GetKnobInfo(Knob::kBuildWorkingDirectory).variable);
}

}  // namespace

void PrepareProgram() {
  OpenStandardStreams();
  ChangeToCallersDirectory();
}

int RunCommandLine(CLI::App& app, std::vector<std::string> arguments,
                   const int& exit_code) {
  app.failure_message(CLI::FailureMessage::simple);
  // CLI11 takes them from the end.
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageExitCode;
  }
  return exit_code;
}

}  // namespace sherd
