#ifndef SHERD_TOOLS_BENCH_CASES_RPC_LIFE_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_RPC_LIFE_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// The costs of workers beside their calls:
//   rpc_start   starting them, a call of each to the next, stopping them
//   rpc_idle    the CPU time, per second, of one that is connected to all
//               others and calls none; memory of a connection
//   rpc_loss    from the death of one until all others know
std::vector<BenchCase> RpcLifeCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_RPC_LIFE_CASES_H_
