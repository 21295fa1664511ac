#ifndef SHERD_TOOLS_BENCH_HARNESS_PROGRAM_REPORT_H_
#define SHERD_TOOLS_BENCH_HARNESS_PROGRAM_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/tools/bench/harness/board.h"

namespace sherd {

// The results of a program that ran in place of ranks.
struct ProgramReport {
  // Per call, from the first rank that entered to the last that left.
  std::vector<double> seconds;
  // Per call, the CPU time of all ranks; empty: not known.
  std::vector<double> cpu_seconds;
  // By rank: the memory that the first call took.
  std::vector<int64_t> extra_bytes;
};

// Reads the file that a program wrote: lines of
//   call SECONDS
//   cpu SECONDS     once per call or not at all
//   extra BYTES     once per rank
//   wrong TEXT      in place of all others: a result was wrong
//   failed TEXT     in place of all others: another error
//
//   kNotFound   The file does not exist.
//   kDataLoss   A result was wrong.
//   kInternal   Another error, or the lines do not match the task.
absl::StatusOr<ProgramReport> ReadProgramReport(const std::string& path,
                                                const BenchTask& task);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_PROGRAM_REPORT_H_
