#ifndef SHERD_TOOLS_BENCH_CASES_CHECKPOINT_SAVE_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_CHECKPOINT_SAVE_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// checkpoint_save.
std::vector<BenchCase> CheckpointSaveCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_CHECKPOINT_SAVE_CASES_H_
