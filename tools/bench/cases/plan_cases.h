#ifndef SHERD_TOOLS_BENCH_CASES_PLAN_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_PLAN_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// The work before data moves, in one process: on metadata alone, of a tensor of
// one-byte elements with one shard for each 16 of its bytes, and of ranks that
// do not exist.
//   validate_*  whether shards overlap; beside it a plain sweep
//   plan_*      validation of both layouts, owners of all shards, and the plan
//               of one of 10,000 ranks
// The field "way" of a result is the peak memory of the process, both lists of
// shards included.
std::vector<BenchCase> PlanCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_PLAN_CASES_H_
