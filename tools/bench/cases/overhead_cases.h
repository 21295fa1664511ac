#ifndef SHERD_TOOLS_BENCH_CASES_OVERHEAD_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_OVERHEAD_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// The cost of a call without communication: ProcessGroup over a plugin that
// does nothing, beside the bare call of the plugin's table. Rank 0 measures
// while the others wait. Fails if a call of ProcessGroup allocates.
std::vector<BenchCase> OverheadCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_OVERHEAD_CASES_H_
