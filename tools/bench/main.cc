// bench: Sherd beside its peers; see measure.h for how it measures.
//
//   tools/bazel run -c opt //tools/bench -- [--list] [--cases=REGEX]
//       [--peers=REGEX] [--world=N,...] [--bytes=N,...] [--calls=N]
//       [--python=PROGRAM] [--json=FILE]
//
// Exit code 0: all requested cases were measured or skipped with a reason. 1: a
// result was wrong or something failed. 2: bad options.

#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/process/signal_receiver.h"
#include "sherd/tools/bench/cases/cases.h"
#include "sherd/tools/bench/harness/measure.h"
#include "sherd/tools/bench/harness/options.h"
#include "sherd/tools/bench/harness/rank_loop.h"
#include "sherd/tools/bench/harness/rank_processes.h"
#include "sherd/tools/bench/harness/report.h"
#include "sherd/tools/bench/peers/torch_program.h"

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

// Writes each result at once. False if the file cannot be written.
bool Print(absl::Span<const BenchResult> results, std::FILE* json) {
  std::fputs(TableRows(results).c_str(), stdout);
  std::fflush(stdout);
  if (json == nullptr) return true;
  for (const BenchResult& result : results) {
    std::fputs(JsonLine(result).c_str(), json);
  }
  return std::fflush(json) == 0;
}

// Explains once, in `said`, why a peer is not measured.
Measurement WithoutAbsentPeers(const Measurement& measurement,
                               std::set<std::string>& said) {
  Measurement present = measurement;
  present.peers.clear();
  for (const int peer : measurement.peers) {
    const absl::Status can = CanMeasurePeer(measurement, peer);
    if (can.ok()) {
      present.peers.push_back(peer);
      continue;
    }
    const std::string reason = absl::StrCat(
        measurement.bench_case->peers[peer].name, ": ", can.message());
    if (said.insert(reason).second) {
      std::fprintf(stderr, "skipped: %s\n", reason.c_str());
    }
  }
  return present;
}

int MeasureAll(absl::Span<const Measurement> measurements, std::FILE* json) {
  // So that ranks and files are removed before the program ends.
  const auto stop = SignalReceiver::Create({SIGINT, SIGTERM, SIGHUP});
  if (!stop.ok()) {
    std::fprintf(stderr, "FAILED: %s\n", stop.status().ToString().c_str());
    return kExitFailed;
  }
  int exit_code = 0;
  std::set<std::string> absent;
  std::fputs(TableTitle().c_str(), stdout);
  for (const Measurement& measurement : measurements) {
    if (absl::Status can = CanMeasure(measurement); !can.ok()) {
      std::fprintf(stderr, "skipped: %s: %s\n", Describe(measurement).c_str(),
                   std::string(can.message()).c_str());
      continue;
    }
    const Measurement present = WithoutAbsentPeers(measurement, absent);
    if (present.peers.empty()) continue;
    absl::StatusOr<Measured> measured = Measure(present, (*stop)->fd());
    if (!measured.ok()) {
      std::fprintf(stderr, "FAILED: %s: %s\n", Describe(measurement).c_str(),
                   measured.status().ToString().c_str());
      if (absl::IsCancelled(measured.status())) return kExitInterrupted;
      exit_code = kExitFailed;
      continue;
    }
    for (const absl::Status& failure : measured->failures) {
      // That others' programs fail is their affair, but no wrong result passes.
      const bool wrong = absl::IsDataLoss(failure);
      if (wrong) exit_code = kExitFailed;
      std::fprintf(stderr, "%s: %s: %s\n", wrong ? "FAILED" : "skipped",
                   Describe(measurement).c_str(), failure.ToString().c_str());
    }
    if (!Print(measured->results, json)) {
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
  SetTorchPython(options->python);
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
  // A distribution's Abseil looks for circles of locks, which one built with
  // optimisation does not.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return sherd::Main(absl::MakeSpan(argv + 1, argc > 0 ? argc - 1 : 0));
}
