#ifndef SHERD_TOOLS_BENCH_HARNESS_STATISTICS_H_
#define SHERD_TOOLS_BENCH_HARNESS_STATISTICS_H_

#include <vector>

namespace sherd {

struct Summary {
  double median = 0;
  double min = 0;
  double max = 0;
  int n = 0;
};

// The median is the mean of the two middle values if their number is even.
// Without values, all results are zero.
Summary Summarize(std::vector<double> values);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_STATISTICS_H_
