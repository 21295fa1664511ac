#ifndef SHERD_TOOLS_BENCH_CASES_COLLECTIVE_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_COLLECTIVE_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// Collectives of ProcessGroup over each backend, beside the bare libraries and
// the limit; see collective_work.h for the data that is moved.
std::vector<BenchCase> CollectiveCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_COLLECTIVE_CASES_H_
