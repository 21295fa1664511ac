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

// What the ranks of one measurement do.
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

// What one rank did in a call, beside the time; -1: not known.
struct WorkFigures {
  // To and from other ranks, by whatever way.
  int64_t bytes_sent = -1;
  int64_t bytes_received = -1;
  // What memory the first call took, with its result.
  int64_t extra_bytes = -1;
  // How it went about it, for the report; a few words.
  std::string way = {};
};

// Memory that the process which measures shares with the ranks it starts: the
// task, places to meet, and the results. Ranks inherit its file descriptor.
//
// Threads. Each slot belongs to its rank while that runs.
class Board {
 public:
  static absl::StatusOr<std::unique_ptr<Board>> Create(const BenchTask& task);
  // Takes the descriptor.
  //   kInvalidArgument  It is not that of a board.
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

  // Returns once all ranks called it; see SharedBarrier.
  void Meet();

  // When a rank entered and left a call, on the monotonic clock.
  void SetCall(int rank, int peer, int call, double entered, double left);
  // From the first rank that entered to the last one that left.
  double CallSeconds(int peer, int call) const;

  void SetFigures(int rank, int peer, const WorkFigures& figures);
  WorkFigures Figures(int rank, int peer) const;

  // A rank says how it ended; OK also means that it did everything.
  void SetOutcome(int rank, const absl::Status& outcome);
  // kUnknown if it said nothing.
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
