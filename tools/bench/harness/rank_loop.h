#ifndef SHERD_TOOLS_BENCH_HARNESS_RANK_LOOP_H_
#define SHERD_TOOLS_BENCH_HARNESS_RANK_LOOP_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/tools/bench/harness/bench_case.h"
#include "sherd/tools/bench/harness/board.h"

namespace sherd {

// One rank's part in the task of `board`, which is about `bench_case`: creates
// the work of every peer of the task, then lets them take turns until each has
// made all its calls. Times are recorded on the board.
//
// For a case that starts ranks, it creates the one peer's work and runs it
// once.
//
//   kDataLoss  A result is wrong; the message names the peer and the call.
//   other      From the peer.
absl::Status RunRank(Board& board, const BenchCase& bench_case, int rank);

// Runs RunRank in a process of its own. Records the outcome on the board;
// returns the exit code.
int RunRankProcess(Board& board, const BenchCase& bench_case, int rank);

// The same for a program that RankProcesses::StartProgram started; `arguments`
// are those after the program's name. The task's case is one of `cases`.
int RankMain(absl::Span<char* const> arguments,
             absl::Span<const BenchCase> cases);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_RANK_LOOP_H_
