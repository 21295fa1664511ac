#ifndef SHERD_TOOLS_BENCH_REPORT_H_
#define SHERD_TOOLS_BENCH_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "sherd/tools/bench/statistics.h"

namespace sherd {

// What was measured of one peer, every call of it checked.
struct BenchResult {
  std::string case_name;
  std::string peer;
  int world = 1;
  int64_t bytes = 0;
  // Seconds of the second and later calls.
  Summary steady;
  double first_call = 0;
};

// {"case":…,"peer":…,"world":…,"bytes":…,"seconds_median":…,"seconds_min":…,
// "seconds_max":…,"n":…} and a newline.
std::string JsonLine(const BenchResult& result);

// The title line of the table.
std::string TableTitle();

// A line for each peer of one case, world and size, in the order of the case.
// The last column has the median as a multiple of that of each peer below it.
std::string TableRows(absl::Span<const BenchResult> results);

// "12.3 us", "4.56 ms", "1.20 s".
std::string FormatTime(double seconds);

// "0", "1000 B", "64 MiB".
std::string FormatSize(int64_t bytes);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_REPORT_H_
