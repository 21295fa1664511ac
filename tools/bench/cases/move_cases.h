#ifndef SHERD_TOOLS_BENCH_CASES_MOVE_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_MOVE_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// Cases that move a tensor from one layout to another:
//   reshard_0_to_1        rows to columns
//   reshard_0_to_grid     rows to a grid
//   reshard_block_cyclic  blocks distributed cyclically over a grid, to blocks
//                         of another size and another grid: many boxes per rank
//   reshard_3d_0_to_2, reshard_3d_0_to_1
//                         of three dims
//   gather                rows to rank 0
//   shard                 rank 0 to rows
std::vector<BenchCase> MoveCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_MOVE_CASES_H_
