#ifndef SHERD_TOOLS_BENCH_CASES_SAVE_PLAN_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_SAVE_PLAN_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// checkpoint_plan_save_1024x1024 and checkpoint_plan_save_10000x1000 (tensors x
// ranks): what a rank of a save computes before and beside the writing. The
// ranks are simulated.
std::vector<BenchCase> SavePlanCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_SAVE_PLAN_CASES_H_
