#include "sherd/tools/bench/harness/rank_loop.h"

#include <fcntl.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/tools/bench/harness/options.h"
#include "sherd/tools/bench/harness/proportional_memory.h"
#include "sherd/tools/bench/harness/rank_context.h"
#include "sherd/tools/bench/harness/rank_processes.h"

namespace sherd {
namespace {

// Common to all processes of a host.
double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Of all threads of this process.
double CpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec);
}

// One peer's work in one rank, and where its results go.
struct Turn {
  Board& board;
  RankWork& work;
  int rank;
  int peer;
  int repeats;
};

// Times a call between two meetings.
absl::Status TimeCall(const Turn& turn, int call) {
  turn.board.Meet();
  CallTimes times;
  const double cpu = CpuSeconds();
  times.entered = Now();
  for (int i = 0; i < turn.repeats; ++i) {
    SHERD_RETURN_IF_ERROR(turn.work.Run());
  }
  times.left = Now();
  times.cpu = CpuSeconds() - cpu;
  if (const std::optional<double> seconds = turn.work.OwnSeconds()) {
    times.entered = 0;
    times.left = *seconds;
    // That of another time: of all calls that the work has timed.
    times.cpu = -1;
  }
  turn.board.Meet();
  turn.board.SetCall(turn.rank, turn.peer, call, times);
  return absl::OkStatus();
}

absl::Status MakeCall(const Turn& turn, int call) {
  SHERD_RETURN_IF_ERROR(turn.work.Prepare());
  SHERD_RETURN_IF_ERROR(TimeCall(turn, call));
  SHERD_RETURN_IF_ERROR(turn.work.Check());
  turn.board.Meet();
  return absl::OkStatus();
}

// The same for a first call whose memory counts: ranks look at what they have
// while no rank is at work.
absl::Status MakeMeasuredCall(const Turn& turn,
                              std::optional<int64_t>& extra_bytes) {
  SHERD_RETURN_IF_ERROR(turn.work.Prepare());
  turn.board.Meet();
  const int64_t before = ProportionalMemory();
  SHERD_RETURN_IF_ERROR(TimeCall(turn, 0));
  const int64_t after = ProportionalMemory();
  if (before >= 0 && after >= 0) extra_bytes = after - before;
  turn.board.Meet();
  SHERD_RETURN_IF_ERROR(turn.work.Check());
  turn.board.Meet();
  return absl::OkStatus();
}

// Makes the work of a peer; `bytes` is the memory that it took, if that counts.
absl::StatusOr<std::unique_ptr<RankWork>> MakeWork(const BenchPeer& peer,
                                                   RankContext& context,
                                                   bool counts,
                                                   int64_t& bytes) {
  bytes = 0;
  if (counts) context.Meet();
  const int64_t before = counts ? ProportionalMemory() : 0;
  absl::StatusOr<std::unique_ptr<RankWork>> work = peer.make(context);
  if (!work.ok()) return Annotate(work.status(), peer.name);
  if (counts) context.Meet();
  if (counts) bytes = ProportionalMemory() - before;
  return work;
}

absl::Status TakeTurns(Board& board, const BenchCase& bench_case,
                       RankContext& context) {
  const BenchTask& task = board.task();
  if (bench_case.share != nullptr) bench_case.share(context);
  std::vector<std::unique_ptr<RankWork>> works;
  std::vector<int64_t> made_bytes(task.peers.size());
  for (const int index : task.peers) {
    SHERD_ASSIGN_OR_RETURN(auto work, MakeWork(bench_case.peers[index], context,
                                               bench_case.measures_tables,
                                               made_bytes[works.size()]));
    works.push_back(std::move(work));
  }
  std::vector<std::optional<int64_t>> extra_bytes(works.size());
  for (int call = 0; call < task.calls; ++call) {
    for (size_t i = 0; i < works.size(); ++i) {
      const Turn turn{board, *works[i], context.rank(), static_cast<int>(i),
                      bench_case.RepeatsOf(task.bytes)};
      const bool measured = call == 0 && (bench_case.lower_bound != nullptr ||
                                          bench_case.measures_tables);
      SHERD_RETURN_IF_ERROR(
          Annotate(measured ? MakeMeasuredCall(turn, extra_bytes[i])
                            : MakeCall(turn, call),
                   absl::StrCat(bench_case.peers[task.peers[i]].name, ", call ",
                                call + 1)));
    }
  }
  for (size_t i = 0; i < works.size(); ++i) {
    WorkFigures figures = works[i]->Figures().value_or(WorkFigures());
    figures.extra_bytes = extra_bytes[i].value_or(-1);
    if (bench_case.measures_tables && extra_bytes[i].has_value()) {
      // A rank's part of its shards falls when others map them.
      figures.extra_bytes =
          std::max<int64_t>(made_bytes[i] + *extra_bytes[i], 0);
    }
    board.SetFigures(context.rank(), static_cast<int>(i), figures);
  }
  return absl::OkStatus();
}

absl::Status RunOnce(const BenchPeer& peer, RankContext& context) {
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<RankWork> work, peer.make(context));
  SHERD_RETURN_IF_ERROR(work->Prepare());
  SHERD_RETURN_IF_ERROR(work->Run());
  return work->Check();
}

}  // namespace

absl::Status RunRank(Board& board, const BenchCase& bench_case, int rank) {
  RankContext context(board, rank);
  if (bench_case.starts_ranks) {
    return RunOnce(bench_case.peers[board.task().peers.front()], context);
  }
  SHERD_RETURN_IF_ERROR(TakeTurns(board, bench_case, context));
  // No rank closes connections while others use them.
  board.Meet();
  return absl::OkStatus();
}

int RunRankProcess(Board& board, const BenchCase& bench_case, int rank) {
  BecomeRank(board);
  const absl::Status outcome = RunRank(board, bench_case, rank);
  board.SetOutcome(rank, outcome);
  return outcome.ok() ? 0 : 1;
}

int RankMain(absl::Span<char* const> arguments,
             absl::Span<const BenchCase> cases) {
  int fd = -1;
  int rank = -1;
  bool good = arguments.size() == 3;
  if (good && arguments[1][0] == '/') {
    // Started by mpirun, which hands on no descriptor and numbers the ranks.
    fd = open(arguments[1], O_RDWR | O_CLOEXEC);
    rank = static_cast<int>(GetIntKnob(Knob::kOmpiRank, 0, kMaxBenchWorld)
                                .value_or(-1)
                                .value_or(-1));
  } else if (good) {
    good = absl::SimpleAtoi(arguments[1], &fd) &&
           absl::SimpleAtoi(arguments[2], &rank);
  }
  if (!good) {
    std::fputs("bench: --bench-rank is for the ranks that bench starts\n",
               stderr);
    return 2;
  }
  absl::StatusOr<std::unique_ptr<Board>> board = Board::Attach(fd);
  if (!board.ok() || rank < 0 || rank >= (*board)->task().world) {
    std::fprintf(stderr, "bench: %s\n", board.status().ToString().c_str());
    return 2;
  }
  for (const BenchCase& bench_case : cases) {
    if (bench_case.name == (*board)->task().case_name) {
      return RunRankProcess(**board, bench_case, rank);
    }
  }
  (*board)->SetOutcome(rank, absl::InternalError("unknown case"));
  return 1;
}

}  // namespace sherd
