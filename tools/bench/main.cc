// bench: Sherd beside its peers; see measure.h for how it measures.
//
//   tools/bazel run -c opt //tools/bench -- [--list] [--cases=REGEX]
//       [--peers=REGEX] [--world=N,...] [--bytes=N,...] [--json=FILE]
//
// Exit code 0: everything that was asked for was measured or skipped with a
// reason. 1: a result was wrong or something failed. 2: bad options.

#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/tools/bench/cases.h"
#include "sherd/tools/bench/measure.h"
#include "sherd/tools/bench/options.h"
#include "sherd/tools/bench/rank_loop.h"
#include "sherd/tools/bench/rank_processes.h"
#include "sherd/tools/bench/report.h"

namespace sherd {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitBadOptions = 2;
constexpr int kExitInterrupted = 130;

int BadOptions(absl::string_view message) {
  std::fprintf(stderr, "bench: %.*s\nbench: --help lists the options\n",
               static_cast<int>(message.size()), message.data());
  return kExitBadOptions;
}

// Where `path` is for the person who called "bazel run", which changes the
// working directory.
std::string FromCaller(const std::string& path) {
  return JoinPath(GetKnobOr(Knob::kBuildWorkingDirectory, "."), path);
}

// Writes results as they come. False if the file cannot be written.
bool Print(absl::Span<const BenchResult> results, std::FILE* json) {
  std::fputs(TableRows(results).c_str(), stdout);
  std::fflush(stdout);
  if (json == nullptr) return true;
  for (const BenchResult& result : results) {
    std::fputs(JsonLine(result).c_str(), json);
  }
  return std::fflush(json) == 0;
}

int MeasureAll(absl::Span<const Measurement> measurements, std::FILE* json) {
  const StopSignals stop;
  int exit_code = 0;
  std::fputs(TableTitle().c_str(), stdout);
  for (const Measurement& measurement : measurements) {
    if (absl::Status can = CanMeasure(measurement); !can.ok()) {
      std::fprintf(stderr, "skipped: %s: %s\n", Describe(measurement).c_str(),
                   std::string(can.message()).c_str());
      continue;
    }
    absl::StatusOr<std::vector<BenchResult>> results =
        Measure(measurement, stop.fd());
    if (!results.ok()) {
      std::fprintf(stderr, "FAILED: %s: %s\n", Describe(measurement).c_str(),
                   results.status().ToString().c_str());
      if (absl::IsCancelled(results.status())) return kExitInterrupted;
      exit_code = kExitFailed;
      continue;
    }
    if (!Print(*results, json)) {
      std::fputs("FAILED: the JSON file could not be written\n", stderr);
      return kExitFailed;
    }
  }
  return exit_code;
}

int Main(absl::Span<char* const> arguments) {
  if (!arguments.empty() &&
      arguments[0] == absl::string_view(RankProcesses::kRankArgument)) {
    return RankMain(arguments, AllBenchCases());
  }
  const absl::StatusOr<BenchOptions> options =
      ParseBenchOptions({arguments.begin(), arguments.end()});
  if (!options.ok()) return BadOptions(options.status().message());
  if (!options->help.empty()) {
    std::fputs(options->help.c_str(), stdout);
    return 0;
  }
  const std::vector<Measurement> measurements = SelectMeasurements(*options);
  if (measurements.empty()) {
    return BadOptions(
        "no case has such a name and such a peer; --list shows all");
  }
  if (options->list) {
    std::fputs(ListCases(*options).c_str(), stdout);
    return 0;
  }
  if (options->json.empty()) return MeasureAll(measurements, nullptr);
  const std::string path = FromCaller(options->json);
  std::FILE* const json = std::fopen(path.c_str(), "we");
  if (json == nullptr) {
    return BadOptions(ErrnoStatus(errno, "--json: writing", path).message());
  }
  const int exit_code = MeasureAll(measurements, json);
  return std::fclose(json) == 0 ? exit_code : kExitFailed;
}

}  // namespace
}  // namespace sherd

int main(int argc, char** argv) {
  return sherd::Main(absl::MakeSpan(argv + 1, argc > 0 ? argc - 1 : 0));
}
