#include "sherd/tools/bench/harness/statistics.h"

#include <algorithm>
#include <cstddef>

namespace sherd {

Summary Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  const double upper = values[n / 2];
  return {.median = n % 2 == 1 ? upper : (values[n / 2 - 1] + upper) / 2,
          .min = values.front(),
          .max = values.back(),
          .n = static_cast<int>(n)};
}

}  // namespace sherd
