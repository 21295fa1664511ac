#ifndef SHERD_TOOLS_BENCH_CASES_RPC_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_RPC_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// Calls between workers and fetches of tensors, beside other RPCs and what the
// system takes for the same; see rpc_work.h.
std::vector<BenchCase> RpcCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_RPC_CASES_H_
