#ifndef SHERD_TOOLS_BENCH_CASES_GPU_CALL_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_GPU_CALL_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// The host's cost of a call on a GPU: ProcessGroup::AllReduce of 8 bytes over
// NCCL, beside the bare ncclAllReduce, in groups of one rank, where NCCL does
// nothing. Fails if a synchronous call of ProcessGroup allocates. One rank
// only.
std::vector<BenchCase> GpuCallCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_GPU_CALL_CASES_H_
