#ifndef SHERD_TOOLS_BENCH_CASES_GPU_MOVE_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_GPU_MOVE_CASES_H_

#include <vector>

#include "absl/status/status.h"
#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// OK if there is a GPU for one rank, otherwise why not.
absl::Status CheckOneGpu(int world);

// What one GPU moves within its memory: boxes between layouts in one launch, as
// packing and unpacking of messages do, and a ShardedTensor whose shards all
// lie on it. Beside the vendor's copy of as many bytes from one place to
// another, and PyTorch. Of one rank.
std::vector<BenchCase> GpuMoveCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_GPU_MOVE_CASES_H_
