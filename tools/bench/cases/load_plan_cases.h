#ifndef SHERD_TOOLS_BENCH_CASES_LOAD_PLAN_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_LOAD_PLAN_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// checkpoint_plan_load_1024x1024 and checkpoint_plan_load_10000x1000: what one
// rank of many plans to read of as many tensors, the others being simulated.
std::vector<BenchCase> LoadPlanCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_LOAD_PLAN_CASES_H_
