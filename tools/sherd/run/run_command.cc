#include "sherd/tools/sherd/run/run_command.h"

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
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/units.h"
#include "sherd/tools/sherd/run/launcher.h"

namespace sherd {
namespace {

constexpr int kMaxRestarts = 1 << 20;

struct RunOptions {
  int ranks = 1;
  bool no_prefix = false;
  std::string timeout;
  std::string grace = "5";
  std::vector<std::string> environment;
  std::string log_directory;
  std::string on_failure = "stop";
  int max_restarts = 0;
  int min_ranks = 0;
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

void PrintLine(const std::string& line) {
  std::fprintf(stderr, "sherd run: %s\n", line.c_str());
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
                          .environment = options.environment,
                          .prefix = !options.no_prefix,
                          .log_directory = options.log_directory,
                          .grace = *ParseDuration(options.grace),
                          .goes_on = options.on_failure == "continue",
                          .max_restarts = options.max_restarts,
                          .min_ranks = options.min_ranks,
                          .notify = PrintLine};
  if (!options.timeout.empty()) {
    launch.timeout = *ParseDuration(options.timeout);
  }
  const absl::StatusOr<LaunchResult> result = Launch(launch);
  if (!result.ok()) {
    PrintLine(std::string(result.status().message()));
    return ExitCodeFor(result.status());
  }
  if (!result->summary.empty()) PrintLine(result->summary);
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

// For CLI11, likewise.
std::string CheckEntry(const std::string& entry) {
  const std::string name = entry.substr(0, entry.find('='));
  if (name.empty() || name.size() == entry.size()) {
    return absl::StrCat("\"", entry, "\" is not NAME=VALUE");
  }
  for (const Knob knob :
       {Knob::kRank, Knob::kWorldSize, Knob::kLocalRank, Knob::kInitMethod}) {
    if (name != GetKnobInfo(knob).variable) continue;
    return absl::StrCat(name, " is set by sherd run itself");
  }
  return {};
}

constexpr char kDescription[] =
    "Start a program as N ranks on this machine:\n"
    "  sherd run -n N [OPTIONS] [--] PROGRAM [ARGS...]";

constexpr char kFooter[] = R"(
Each rank finds RANK, WORLD_SIZE, LOCAL_RANK and SHERD_INIT_METHOD in its
environment, which is what sherd::Init({}) needs, and SHERD_FLIGHT_DIR. Standard
input is empty. The first rank that fails stops the others: they have the grace
to end by themselves, write a flight recorder dump (SIGUSR1), get SIGTERM, and
after the grace again SIGKILL. The last line names the rank that the others'
dumps name, or else the one that failed first, but no rank if all ended with
one exit code. The exit code is its own (128 plus its signal); 124 after a timeout,
127 or 126 if the program cannot be started.

--on-failure=continue lets the others go on (ProcessGroup::Shrink): the exit
code is 0 if all that are left end with 0. --max-restarts starts all ranks
again, in a program that goes on from a checkpoint; with --min-ranks as many as
did not fail themselves.

  sherd run -n 4 ./train --epochs=3
  sherd run -n 4 --max-restarts=3 --min-ranks=2 ./train
  sherd run -n 2 --timeout 60 -- sh -c 'echo rank $RANK of $WORLD_SIZE')";

}  // namespace

std::vector<std::string> TakeProgram(std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] != "run") return {};
  static const auto* const with_value = new std::vector<std::string>{
      "-n",        "--ranks",      "--timeout",      "--grace",    "--env",
      "--log-dir", "--on-failure", "--max-restarts", "--min-ranks"};
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
  CLI::Option* const no_prefix =
      run->add_flag("--no-prefix", options->no_prefix,
                    "Ranks write to the terminal themselves, without "
                    "\"[rank] \" before their lines");
  run->add_option("--env", options->environment,
                  "NAME=VALUE for the environment of all ranks; repeatable")
      ->check(CheckEntry)
      ->allow_extra_args(false);
  run->add_option("--log-dir", options->log_directory,
                  "Also write each rank's output to DIR/rank-R.out and .err, "
                  "and its flight recorder dump; of a restart to DIR/restart-K")
      ->excludes(no_prefix);
  run->add_option(
         "--on-failure", options->on_failure,
         "What the other ranks do if a rank fails: stop, or continue without "
         "it")
      ->check(CLI::IsMember({"stop", "continue"}))
      ->capture_default_str();
  CLI::Option* const restarts =
      run->add_option("--max-restarts", options->max_restarts,
                      "How often all ranks are started again after a failure")
          ->check(CLI::Range(0, kMaxRestarts))
          ->capture_default_str();
  run->add_option("--min-ranks", options->min_ranks,
                  "Restart with as many ranks as did not fail themselves, if "
                  "there are at least so many; by default with all")
      ->check(CLI::Range(1, kMaxLocalRanks))
      ->needs(restarts);
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
