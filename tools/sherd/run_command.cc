#include "sherd/tools/sherd/run_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sherd/core/base/units.h"
#include "sherd/tools/sherd/launcher.h"

namespace sherd {
namespace {

struct RunOptions {
  int ranks = 1;
  bool no_prefix = false;
  std::string timeout;
  std::string grace = "5";
};

// As shells do it for a program that they cannot start.
int ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return 2;
    case absl::StatusCode::kPermissionDenied:
      return 126;
    case absl::StatusCode::kNotFound:
      return 127;
    default:
      return 1;
  }
}

int Run(const RunOptions& options, const std::vector<std::string>& command) {
  if (command.empty()) {
    std::fprintf(
        stderr, "sherd run: no program to run: sherd run -n %d PROGRAM ARGS…\n",
        options.ranks);
    return 2;
  }
  LaunchOptions launch = {.ranks = options.ranks,
                          .command = command,
                          .prefix = !options.no_prefix,
                          .grace = *ParseDuration(options.grace)};
  if (!options.timeout.empty()) {
    launch.timeout = *ParseDuration(options.timeout);
  }
  const absl::StatusOr<LaunchResult> result = Launch(launch);
  if (!result.ok()) {
    std::fprintf(stderr, "sherd run: %s\n",
                 std::string(result.status().message()).c_str());
    return ExitCodeFor(result.status());
  }
  if (!result->summary.empty()) {
    std::fprintf(stderr, "sherd run: %s\n", result->summary.c_str());
  }
  return result->exit_code;
}

// For CLI11: empty, or what is wrong with a duration.
std::string CheckDuration(const std::string& text, bool may_be_zero) {
  const std::optional<absl::Duration> value = ParseDuration(text);
  const absl::Duration least =
      may_be_zero ? absl::ZeroDuration() : absl::Nanoseconds(1);
  if (value && *value >= least) return {};
  return absl::StrCat("\"", text, "\" is not a duration ",
                      may_be_zero ? "of 0 or more" : "above zero",
                      ", such as 30 (seconds), 8s or 1m30s");
}

constexpr char kDescription[] =
    "Start a program as N ranks on this machine:\n"
    "  sherd run -n N [OPTIONS] [--] PROGRAM [ARGS...]";

constexpr char kFooter[] = R"(
Each rank finds RANK, WORLD_SIZE, LOCAL_RANK and SHERD_INIT_METHOD in its
environment, which is what sherd::Init({}) needs. Standard input is empty.
The first rank that fails stops the others: they have the grace to end by
themselves, get SIGTERM, and after the grace again SIGKILL. The exit code is
that of the first rank that failed (128 plus its signal), 124 after a timeout,
127 or 126 if the program cannot be started.

  sherd run -n 4 ./train --epochs=3
  sherd run -n 2 --timeout 60 -- sh -c 'echo rank $RANK of $WORLD_SIZE')";

}  // namespace

std::vector<std::string> TakeProgram(std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] != "run") return {};
  static const auto* const with_value =
      new std::vector<std::string>{"-n", "--ranks", "--timeout", "--grace"};
  auto argument = arguments.begin() + 1;
  while (argument != arguments.end() && *argument != "--" &&
         !argument->empty() && argument->front() == '-') {
    const bool takes_next = std::find(with_value->begin(), with_value->end(),
                                      *argument) != with_value->end();
    ++argument;
    if (takes_next && argument != arguments.end()) ++argument;
  }
  auto program = argument;
  if (program != arguments.end() && *program == "--") ++program;
  std::vector<std::string> taken(program, arguments.end());
  arguments.erase(argument, arguments.end());
  return taken;
}

void AddRunCommand(CLI::App& app, const std::vector<std::string>& program,
                   int& exit_code) {
  CLI::App* const run = app.add_subcommand("run", kDescription);
  auto options = std::make_shared<RunOptions>();
  run->add_option("-n,--ranks", options->ranks, "Number of ranks")
      ->required()
      ->check(CLI::Range(1, kMaxLocalRanks));
  run->add_flag("--no-prefix", options->no_prefix,
                "Ranks write to the terminal themselves, without \"[rank] \" "
                "before their lines");
  run->add_option("--timeout", options->timeout,
                  "Time that the run may take (90, 1m30s); unlimited by "
                  "default")
      ->check([](const std::string& text) {
        return CheckDuration(text, /*may_be_zero=*/false);
      });
  run->add_option("--grace", options->grace,
                  "Time that ranks have to end by themselves after another "
                  "one failed, and then after SIGTERM")
      ->check([](const std::string& text) {
        return CheckDuration(text, /*may_be_zero=*/true);
      })
      ->capture_default_str();
  run->footer(kFooter);
  run->callback(
      [options, &program, &exit_code] { exit_code = Run(*options, program); });
}

}  // namespace sherd
