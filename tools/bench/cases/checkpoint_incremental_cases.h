#ifndef SHERD_TOOLS_BENCH_CASES_CHECKPOINT_INCREMENTAL_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_CHECKPOINT_INCREMENTAL_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// checkpoint_incremental.
std::vector<BenchCase> CheckpointIncrementalCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_CHECKPOINT_INCREMENTAL_CASES_H_
