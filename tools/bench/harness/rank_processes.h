#ifndef SHERD_TOOLS_BENCH_HARNESS_RANK_PROCESSES_H_
#define SHERD_TOOLS_BENCH_HARNESS_RANK_PROCESSES_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "sherd/core/process/process_set.h"
#include "sherd/tools/bench/harness/bench_case.h"
#include "sherd/tools/bench/harness/board.h"
#include "sherd/tools/bench/harness/mpirun.h"

namespace sherd {

// The ranks of one measurement. They die with this process, or with this
// object.
//
// Threads. Only in a process with one thread: the kernel treats the end of the
// thread that started a rank as the end of the parent.
class RankProcesses {
 public:
  // The first argument of a process that is a rank; the second is the file
  // descriptor of its board, the third its rank. RankMain reads them.
  // For ranks under mpirun the second is a path to the board, and the third is
  // "-".
  static constexpr char kRankArgument[] = "--bench-rank";

  explicit RankProcesses(const Board& board) : board_(board) {}
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Starts this program once for each rank.
  absl::Status StartProgram();

  // Has mpirun start this program once for each rank; see MpirunCommand.
  //   kNotFound  This machine has no mpirun.
  absl::Status StartUnderMpirun(MpiTransport transport,
                                const std::string& directory);

  // Starts `program` instead, whose end represents that of all ranks. Its
  // output is not shown.
  absl::Status StartOther(const BenchProgram& program);

  // Forks for each rank; the copies run `body` with their rank and exit with
  // its result.
  absl::Status Fork(const std::function<int(int)>& body);

  // Returns once all ranks have ended with success. The first failure ends the
  // others.
  //   other              The error that the failed rank reported.
  //   kDeadlineExceeded  They ran for longer than `timeout`.
  //   kCancelled         `stop_fd`, if not -1, became readable.
  absl::Status Wait(absl::Duration timeout, int stop_fd);

 private:
  // The error of a process that has ended, or of one of its ranks.
  absl::Status ErrorOf(int process) const;
  absl::Status OutcomeOfAllRanks() const;

  const Board& board_;
  // Indexed by rank, or one that represents all.
  ProcessSet processes_;
  // The name of that process: mpirun, or another program.
  std::string stand_in_;
};

// Call it first in a rank: the rank then dies with the process that made the
// board.
void BecomeRank(const Board& board);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_RANK_PROCESSES_H_
