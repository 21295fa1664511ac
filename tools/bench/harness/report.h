#ifndef SHERD_TOOLS_BENCH_HARNESS_REPORT_H_
#define SHERD_TOOLS_BENCH_HARNESS_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "sherd/tools/bench/harness/statistics.h"

namespace sherd {

// The results of one peer, every call of which was checked.
struct BenchResult {
  std::string case_name;
  std::string peer;
  int world = 1;
  int64_t bytes = 0;
  // Seconds of the second and later calls.
  Summary steady;
  double first_call = 0;
  // The median of the CPU time of all ranks, if known; and whether peers are
  // compared by it.
  std::optional<double> cpu_seconds = {};
  bool compares_cpu = false;
  // Of several transports or strategies, the fastest, or the one that the peer
  // reports; empty: there is only one.
  std::string way = {};
  // Of moves, if known. Bytes between ranks, and those that every strategy must
  // move.
  std::optional<int64_t> bytes_moved = {};
  int64_t lower_bound_bytes = 0;
  // Memory that the first call took, with its result: of all ranks, and of the
  // rank that took most.
  std::optional<int64_t> extra_bytes = {};
  int64_t extra_bytes_of_one_rank = 0;
};

// Returns {"case":…,"peer":…,"world":…,"bytes":…,"seconds_median":…,
// "seconds_min":…, "seconds_max":…,"n":…,"seconds_first":…} and a newline; if
// known also "cpu_seconds_median", "way", "bytes_moved", "lower_bound_bytes",
// "extra_bytes", "extra_bytes_of_one_rank".
std::string JsonLine(const BenchResult& result);

// The title line of the table.
std::string TableTitle();

// A line for each peer of one case, world and size, in the order of the case.
// Column "moved" has the bytes moved as a multiple of the lower bound, "memory"
// the extra memory of all ranks as a multiple of the tensor. The last column
// has the median as a multiple of that of each peer below it, or for cases that
// compare it the CPU time.
std::string TableRows(absl::Span<const BenchResult> results);

// "12.3 us", "4.56 ms", "1.20 s".
std::string FormatTime(double seconds);

// "0", "1000 B", "64 MiB".
std::string FormatSize(int64_t bytes);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_REPORT_H_
