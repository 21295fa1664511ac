#ifndef SHERD_TOOLS_BENCH_MOVE_CASES_H_
#define SHERD_TOOLS_BENCH_MOVE_CASES_H_

#include <vector>

#include "sherd/tools/bench/bench_case.h"

namespace sherd {

// Cases that move a tensor from one layout to another: reshard_0_to_1 (rows to
// columns), reshard_0_to_grid, gather (rows to rank 0).
std::vector<BenchCase> MoveCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_MOVE_CASES_H_
