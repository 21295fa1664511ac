#ifndef SHERD_TOOLS_BENCH_CASES_CHECKPOINT_LOAD_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_CHECKPOINT_LOAD_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// checkpoint_load_same (rows to rows), checkpoint_load_cold (the same from
// files that the page cache does not have) and checkpoint_load_resharded (rows
// to columns).
std::vector<BenchCase> CheckpointLoadCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_CHECKPOINT_LOAD_CASES_H_
