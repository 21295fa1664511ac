#include "sherd/tools/bench/harness/measure.h"

#include <unistd.h>

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
#include "sherd/tools/bench/harness/board.h"
#include "sherd/tools/bench/harness/program_report.h"
#include "sherd/tools/bench/harness/rank_loop.h"
#include "sherd/tools/bench/harness/rank_processes.h"
#include "sherd/tools/bench/harness/statistics.h"

namespace sherd {
namespace {

// For all calls of a measurement together.
constexpr absl::Duration kLongest = absl::Minutes(30);

std::string TemporaryRoot() { return GetKnobOr(Knob::kTmpDir, "/tmp"); }

// Where files are memory.
std::string SharedMemoryRoot() {
  constexpr char kSharedMemory[] = "/dev/shm";
  return access(kSharedMemory, W_OK) == 0 ? kSharedMemory : TemporaryRoot();
}

int TimedCalls(const Measurement& measurement) {
  if (measurement.calls > 0) return measurement.calls;
  if (measurement.bench_case->starts_ranks ||
      measurement.bench_case->RepeatsOf(measurement.bytes) > 1) {
    return 15;
  }
  if (measurement.bytes <= int64_t{1} << 20) return 51;
  return measurement.bytes <= int64_t{64} << 20 ? 15 : 5;
}

// A directory that is removed with this object.
class TemporaryDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> Create(
      const std::string& root = TemporaryRoot()) {
    std::string path = JoinPath(root, "sherd-bench-XXXXXX");
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

// The result of one peer.
struct Samples {
  // Of each call, the first one included. Empty: it was not measured.
  std::vector<double> seconds;
  // Of all ranks, likewise; empty: not known.
  std::vector<double> cpu_seconds;
  // By rank.
  std::vector<WorkFigures> figures;
};

// Peers whose ranks are started together, as positions in measurement.peers.
struct Session {
  std::vector<size_t> positions;
  MpiTransport transport = MpiTransport::kVader;
  bool is_program = false;
};

// First the one that most peers share.
std::vector<Session> SessionsOf(const Measurement& measurement) {
  std::vector<Session> sessions(1);
  for (size_t i = 0; i < measurement.peers.size(); ++i) {
    const BenchPeer& peer = measurement.bench_case->peers[measurement.peers[i]];
    if (peer.measuring_program != nullptr) {
      sessions.push_back({.positions = {i}, .is_program = true});
      continue;
    }
    auto session = std::find_if(
        sessions.begin(), sessions.end(), [&peer](const Session& s) {
          return !s.is_program && s.transport == peer.transport;
        });
    if (session == sessions.end()) {
      session = sessions.insert(session, Session());
      session->transport = peer.transport;
    }
    session->positions.push_back(i);
  }
  sessions.erase(std::remove_if(sessions.begin(), sessions.end(),
                                [](const Session& session) {
                                  return session.positions.empty();
                                }),
                 sessions.end());
  return sessions;
}

absl::Status RunRanks(const Measurement& measurement, const Session& session,
                      int calls, const std::string& directory, int stop_fd,
                      std::vector<Samples>& samples) {
  const BenchCase& bench_case = *measurement.bench_case;
  std::vector<int> peers;
  for (const size_t i : session.positions) {
    peers.push_back(measurement.peers[i]);
  }
  SHERD_ASSIGN_OR_RETURN(
      const std::unique_ptr<Board> board,
      Board::Create(TaskOf(measurement, peers, calls, directory)));
  RankProcesses ranks(*board);
  const bool needs_mpirun = std::any_of(
      peers.begin(), peers.end(),
      [&](int peer) { return bench_case.peers[peer].needs_mpirun; });
  std::unique_ptr<TemporaryDirectory> shared_memory;
  if (needs_mpirun) {
    SHERD_ASSIGN_OR_RETURN(shared_memory,
                           TemporaryDirectory::Create(SharedMemoryRoot()));
    SHERD_RETURN_IF_ERROR(
        ranks.StartUnderMpirun(session.transport, shared_memory->path()));
  } else {
    SHERD_RETURN_IF_ERROR(ranks.StartProgram());
  }
  SHERD_RETURN_IF_ERROR(ranks.Wait(kLongest, stop_fd));
  const int repeats = bench_case.RepeatsOf(measurement.bytes);
  for (size_t i = 0; i < peers.size(); ++i) {
    const int slot = static_cast<int>(i);
    Samples& own = samples[session.positions[i]];
    for (int call = 0; call < calls; ++call) {
      own.seconds.push_back(board->CallSeconds(slot, call) / repeats);
      const double cpu = board->CallCpuSeconds(slot, call);
      if (cpu >= 0) own.cpu_seconds.push_back(cpu / repeats);
    }
    for (int rank = 0; rank < measurement.world; ++rank) {
      own.figures.push_back(board->Figures(rank, slot));
    }
  }
  return absl::OkStatus();
}

absl::Status RunProgram(const Measurement& measurement, const Session& session,
                        int calls, const std::string& directory, int stop_fd,
                        std::vector<Samples>& samples) {
  const size_t position = session.positions.front();
  const int peer = measurement.peers[position];
  const BenchTask task = TaskOf(measurement, {peer}, calls, directory);
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<Board> board,
                         Board::Create(task));
  const std::string path = JoinPath(directory, "report");
  RankProcesses ranks(*board);
  SHERD_RETURN_IF_ERROR(ranks.StartOther(
      measurement.bench_case->peers[peer].measuring_program(task, path)));
  const absl::Status ended = ranks.Wait(kLongest, stop_fd);
  if (absl::IsCancelled(ended)) return ended;
  absl::StatusOr<ProgramReport> report = ReadProgramReport(path, task);
  // The program's own report is better than the fact that it failed.
  if (!report.ok() && !absl::IsNotFound(report.status())) {
    return report.status();
  }
  SHERD_RETURN_IF_ERROR(ended);
  SHERD_RETURN_IF_ERROR(report.status());
  Samples& own = samples[position];
  own.seconds = std::move(report->seconds);
  own.cpu_seconds = std::move(report->cpu_seconds);
  for (const int64_t bytes : report->extra_bytes) {
    own.figures.push_back({.extra_bytes = bytes});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Samples>> MeasureCalls(
    const Measurement& measurement, int stop_fd,
    std::vector<absl::Status>& failures) {
  const int calls = 1 + TimedCalls(measurement);
  std::vector<Samples> samples(measurement.peers.size());
  const std::vector<Session> sessions = SessionsOf(measurement);
  for (size_t i = 0; i < sessions.size(); ++i) {
    const Session& session = sessions[i];
    SHERD_ASSIGN_OR_RETURN(const auto directory, TemporaryDirectory::Create());
    absl::Status status = (session.is_program ? RunProgram : RunRanks)(
        measurement, session, calls, directory->path(), stop_fd, samples);
    if (status.ok()) continue;
    if (absl::IsCancelled(status) || (i == 0 && !session.is_program)) {
      return status;
    }
    const BenchPeer& peer =
        measurement.bench_case
            ->peers[measurement.peers[session.positions.front()]];
    failures.push_back(
        Annotate(status, peer.way.empty()
                             ? peer.name
                             : absl::StrCat(peer.name, " (", peer.way, ")")));
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

absl::StatusOr<std::vector<Samples>> MeasureStarts(
    const Measurement& measurement, int stop_fd) {
  const int calls = 1 + TimedCalls(measurement);
  std::vector<Samples> samples(measurement.peers.size());
  for (int call = 0; call < calls; ++call) {
    for (size_t i = 0; i < samples.size(); ++i) {
      const int peer = measurement.peers[i];
      absl::StatusOr<double> seconds = StartOnce(measurement, peer, stop_fd);
      if (!seconds.ok()) {
        return Annotate(seconds.status(),
                        measurement.bench_case->peers[peer].name);
      }
      samples[i].seconds.push_back(*seconds);
    }
  }
  return samples;
}

BenchResult ResultOf(const Measurement& measurement, const BenchPeer& peer,
                     const Samples& samples) {
  const BenchCase& bench_case = *measurement.bench_case;
  BenchResult result = {
      .case_name = bench_case.name,
      .peer = peer.name,
      .world = measurement.world,
      .bytes = measurement.bytes,
      .steady = Summarize({samples.seconds.begin() + 1, samples.seconds.end()}),
      .first_call = samples.seconds.front(),
      .way = peer.way};
  for (const WorkFigures& figures : samples.figures) {
    if (result.way.empty()) result.way = figures.way;
  }
  if (!samples.cpu_seconds.empty()) {
    result.cpu_seconds =
        Summarize({samples.cpu_seconds.begin() + 1, samples.cpu_seconds.end()})
            .median;
  }
  result.compares_cpu = bench_case.compares_cpu;
  if (bench_case.lower_bound != nullptr) {
    result.lower_bound_bytes =
        bench_case.lower_bound(measurement.world, measurement.bytes);
  } else if (!bench_case.measures_tables) {
    return result;
  }
  int64_t sent = 0;
  int64_t received = 0;
  int64_t extra = 0;
  bool knows_bytes = bench_case.lower_bound != nullptr;
  bool knows_memory = true;
  for (const WorkFigures& figures : samples.figures) {
    knows_bytes &= figures.bytes_sent >= 0 && figures.bytes_received >= 0;
    knows_memory &= figures.extra_bytes >= 0;
    sent += figures.bytes_sent;
    received += figures.bytes_received;
    extra += figures.extra_bytes;
    result.extra_bytes_of_one_rank =
        std::max(result.extra_bytes_of_one_rank, figures.extra_bytes);
  }
  // Where one rank copies, the other may not know of it.
  if (knows_bytes) result.bytes_moved = std::max(sent, received);
  if (knows_memory) result.extra_bytes = extra;
  return result;
}

}  // namespace

std::string Describe(const Measurement& measurement) {
  return absl::StrCat(measurement.bench_case->name, ", ", measurement.world,
                      " ranks",
                      measurement.bench_case->IsSized()
                          ? absl::StrCat(", ", FormatSize(measurement.bytes))
                          : "");
}

absl::Status CanMeasure(const Measurement& measurement) {
  const BenchCase& bench_case = *measurement.bench_case;
  if (bench_case.check == nullptr) return absl::OkStatus();
  return bench_case.check(measurement.world, measurement.bytes,
                          TemporaryRoot());
}

absl::Status CanMeasurePeer(const Measurement& measurement, int peer) {
  const BenchPeer& bench_peer = measurement.bench_case->peers[peer];
  if (bench_peer.check == nullptr) return absl::OkStatus();
  return bench_peer.check(measurement.world, measurement.bytes,
                          TemporaryRoot());
}

absl::StatusOr<Measured> Measure(const Measurement& measurement, int stop_fd) {
  const BenchCase& bench_case = *measurement.bench_case;
  Measured measured;
  SHERD_ASSIGN_OR_RETURN(
      const std::vector<Samples> samples,
      bench_case.starts_ranks
          ? MeasureStarts(measurement, stop_fd)
          : MeasureCalls(measurement, stop_fd, measured.failures));
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].seconds.empty()) continue;
    const BenchPeer& peer = bench_case.peers[measurement.peers[i]];
    const BenchResult result = ResultOf(measurement, peer, samples[i]);
    auto same = std::find_if(
        measured.results.begin(), measured.results.end(),
        [&peer](const BenchResult& other) { return other.peer == peer.name; });
    if (same == measured.results.end()) {
      measured.results.push_back(result);
    } else if (result.steady.median < same->steady.median) {
      *same = result;
    }
  }
  return measured;
}

}  // namespace sherd
