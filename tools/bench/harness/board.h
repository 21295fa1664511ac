#ifndef SHERD_TOOLS_BENCH_HARNESS_BOARD_H_
#define SHERD_TOOLS_BENCH_HARNESS_BOARD_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/process/shared_segment.h"

namespace sherd {

inline constexpr int kMaxBenchPeers = 32;

// The task of the ranks of one measurement.
struct BenchTask {
  std::string case_name;
  // Indices of peers of the case, in the order in which they take turns.
  std::vector<int> peers;
  int world = 1;
  int64_t bytes = 0;
  // Calls of each peer, the first one included.
  int calls = 1;
  // An empty directory for files.
  std::string directory;
  // Memory that the ranks share, all zeros.
  int64_t shared_bytes = 0;
};

// One rank's call, in seconds.
struct CallTimes {
  // On the monotonic clock.
  double entered = 0;
  double left = 0;
  // What the threads of the process computed meanwhile; -1: not known.
  double cpu = 0;
};

// Figures of one rank's call, beside the time; -1: not known.
struct WorkFigures {
  // To and from other ranks, by any transport.
  int64_t bytes_sent = -1;
  int64_t bytes_received = -1;
  // The memory that the first call took, including its result.
  int64_t extra_bytes = -1;
  // The transport or strategy, for the report; a few words.
  std::string way = {};
};

// Memory that the measuring process shares with the ranks that it starts: the
// task, barriers, and the results. Ranks inherit its file descriptor.
//
// Threads. Each slot belongs to its rank while the rank runs.
class Board {
 public:
  static absl::StatusOr<std::unique_ptr<Board>> Create(const BenchTask& task);
  // Takes the descriptor over.
  //   kInvalidArgument  It is not the descriptor of a board.
  static absl::StatusOr<std::unique_ptr<Board>> Attach(int fd);

  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  int fd() const { return shared_.fd(); }
  const BenchTask& task() const { return task_; }
  // The process that made the board.
  pid_t parent() const;

  // The memory that the task asked for, aligned to 2 MiB. The same pages in all
  // processes.
  absl::Span<std::byte> shared() const;

  // Returns once all ranks have called it; see SharedBarrier.
  void Meet();

  void SetCall(int rank, int peer, int call, const CallTimes& times);
  // From the first rank that entered to the last one that left.
  double CallSeconds(int peer, int call) const;
  // The CPU time of all ranks; -1 if that of one is not known.
  double CallCpuSeconds(int peer, int call) const;

  void SetFigures(int rank, int peer, const WorkFigures& figures);
  WorkFigures Figures(int rank, int peer) const;

  // Records how a rank ended; OK also means that it completed its work.
  void SetOutcome(int rank, const absl::Status& outcome);
  // kUnknown if it reported nothing.
  absl::Status Outcome(int rank) const;

 private:
  struct Memory;

  explicit Board(SharedSegment shared);

  const SharedSegment shared_;
  Memory& memory_;
  BenchTask task_;
};

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_BOARD_H_
