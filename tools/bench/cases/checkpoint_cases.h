#ifndef SHERD_TOOLS_BENCH_CASES_CHECKPOINT_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_CHECKPOINT_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// checkpoint_save, checkpoint_load_same (rows to rows) and
// checkpoint_load_resharded (rows to columns).
std::vector<BenchCase> CheckpointCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_CHECKPOINT_CASES_H_
