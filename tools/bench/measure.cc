#include "sherd/tools/bench/measure.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/tools/bench/board.h"
#include "sherd/tools/bench/rank_loop.h"
#include "sherd/tools/bench/rank_processes.h"
#include "sherd/tools/bench/statistics.h"

namespace sherd {
namespace {

// For all calls of a measurement together.
constexpr absl::Duration kLongest = absl::Minutes(30);

std::string TemporaryRoot() { return GetKnobOr(Knob::kTmpDir, "/tmp"); }

int TimedCalls(const Measurement& measurement) {
  if (measurement.bench_case->starts_ranks ||
      measurement.bench_case->RepeatsOf(measurement.bytes) > 1) {
    return 15;
  }
  if (measurement.bytes <= int64_t{1} << 20) return 51;
  return measurement.bytes <= int64_t{64} << 20 ? 15 : 5;
}

// A directory that is gone when this is.
class TemporaryDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> Create() {
    std::string path = JoinPath(TemporaryRoot(), "sherd-bench-XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      return ErrnoStatus(errno, "making a directory like", path);
    }
    return std::unique_ptr<TemporaryDirectory>(
        new TemporaryDirectory(std::move(path)));
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    if (absl::Status status = FileSystem::Posix().RemoveAll(path_);
        !status.ok()) {
      SHERD_LOG(kWarning) << "not removed: " << status.ToString();
    }
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

BenchTask TaskOf(const Measurement& measurement, std::vector<int> peers,
                 int calls, const std::string& directory) {
  const BenchCase& bench_case = *measurement.bench_case;
  return {.case_name = bench_case.name,
          .peers = std::move(peers),
          .world = measurement.world,
          .bytes = measurement.bytes,
          .calls = calls,
          .directory = directory,
          .shared_bytes = bench_case.shared_bytes == nullptr
                              ? 0
                              : bench_case.shared_bytes(measurement.world,
                                                        measurement.bytes)};
}

// Seconds of each call, by peer; first calls included.
using Samples = std::vector<std::vector<double>>;

absl::StatusOr<Samples> MeasureCalls(const Measurement& measurement,
                                     int stop_fd) {
  const int calls = 1 + TimedCalls(measurement);
  SHERD_ASSIGN_OR_RETURN(const auto directory, TemporaryDirectory::Create());
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<Board> board,
                         Board::Create(TaskOf(measurement, measurement.peers,
                                              calls, directory->path())));
  RankProcesses ranks(*board);
  const BenchCase& bench_case = *measurement.bench_case;
  const bool needs_mpirun = std::any_of(
      measurement.peers.begin(), measurement.peers.end(),
      [&](int peer) { return bench_case.peers[peer].needs_mpirun; });
  SHERD_RETURN_IF_ERROR(needs_mpirun ? ranks.StartUnderMpirun()
                                     : ranks.StartProgram());
  SHERD_RETURN_IF_ERROR(ranks.Wait(kLongest, stop_fd));
  const int repeats = bench_case.RepeatsOf(measurement.bytes);
  Samples samples(measurement.peers.size());
  for (size_t peer = 0; peer < samples.size(); ++peer) {
    for (int call = 0; call < calls; ++call) {
      samples[peer].push_back(board->CallSeconds(static_cast<int>(peer), call) /
                              repeats);
    }
  }
  return samples;
}

absl::StatusOr<double> StartOnce(const Measurement& measurement, int peer,
                                 int stop_fd) {
  const BenchCase& bench_case = *measurement.bench_case;
  SHERD_ASSIGN_OR_RETURN(const auto directory, TemporaryDirectory::Create());
  SHERD_ASSIGN_OR_RETURN(
      const std::unique_ptr<Board> board,
      Board::Create(TaskOf(measurement, {peer}, 1, directory->path())));
  RankProcesses ranks(*board);
  int units = 1;
  const auto start = std::chrono::steady_clock::now();
  if (bench_case.peers[peer].program != nullptr) {
    const BenchProgram program =
        bench_case.peers[peer].program(measurement.world);
    units = program.units;
    SHERD_RETURN_IF_ERROR(ranks.StartOther(program));
  } else if (bench_case.peers[peer].forks) {
    SHERD_RETURN_IF_ERROR(ranks.Fork(
        [&](int rank) { return RunRankProcess(*board, bench_case, rank); }));
  } else {
    SHERD_RETURN_IF_ERROR(ranks.StartProgram());
  }
  SHERD_RETURN_IF_ERROR(ranks.Wait(kLongest, stop_fd));
  const std::chrono::duration<double> time =
      std::chrono::steady_clock::now() - start;
  return time.count() / units;
}

absl::StatusOr<Samples> MeasureStarts(const Measurement& measurement,
                                      int stop_fd) {
  const int calls = 1 + TimedCalls(measurement);
  Samples samples(measurement.peers.size());
  for (int call = 0; call < calls; ++call) {
    for (size_t i = 0; i < samples.size(); ++i) {
      const int peer = measurement.peers[i];
      absl::StatusOr<double> seconds = StartOnce(measurement, peer, stop_fd);
      if (!seconds.ok()) {
        return Annotate(seconds.status(),
                        measurement.bench_case->peers[peer].name);
      }
      samples[i].push_back(*seconds);
    }
  }
  return samples;
}

}  // namespace

std::string Describe(const Measurement& measurement) {
  return absl::StrCat(measurement.bench_case->name, ", ", measurement.world,
                      " ranks",
                      measurement.bench_case->starts_ranks
                          ? ""
                          : absl::StrCat(", ", FormatSize(measurement.bytes)));
}

absl::Status CanMeasure(const Measurement& measurement) {
  const BenchCase& bench_case = *measurement.bench_case;
  if (bench_case.check == nullptr) return absl::OkStatus();
  return bench_case.check(measurement.world, measurement.bytes,
                          TemporaryRoot());
}

absl::StatusOr<std::vector<BenchResult>> Measure(const Measurement& measurement,
                                                 int stop_fd) {
  const BenchCase& bench_case = *measurement.bench_case;
  SHERD_ASSIGN_OR_RETURN(const Samples samples,
                         bench_case.starts_ranks
                             ? MeasureStarts(measurement, stop_fd)
                             : MeasureCalls(measurement, stop_fd));
  std::vector<BenchResult> results;
  for (size_t i = 0; i < samples.size(); ++i) {
    results.push_back(
        {.case_name = bench_case.name,
         .peer = bench_case.peers[measurement.peers[i]].name,
         .world = measurement.world,
         .bytes = measurement.bytes,
         .steady = Summarize({samples[i].begin() + 1, samples[i].end()}),
         .first_call = samples[i].front()});
  }
  return results;
}

}  // namespace sherd
