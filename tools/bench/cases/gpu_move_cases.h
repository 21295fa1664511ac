#ifndef SHERD_TOOLS_BENCH_CASES_GPU_MOVE_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_GPU_MOVE_CASES_H_

#include <vector>

#include "absl/status/status.h"
#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// Returns OK if there is a GPU for one rank, otherwise the reason.
absl::Status CheckOneGpu(int world);

// Moves within one GPU's memory: boxes between layouts in one launch, as
// packing and unpacking of messages do, and a ShardedTensor whose shards are
// all on it. Compared with the vendor's copy of as many bytes, and with
// PyTorch. One rank only.
std::vector<BenchCase> GpuMoveCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_GPU_MOVE_CASES_H_
