#ifndef SHERD_BACKENDS_NCCL_RUN_WITH_DEADLINE_H_
#define SHERD_BACKENDS_NCCL_RUN_WITH_DEADLINE_H_

#include <cstdint>
#include <functional>

#include "sherd/backends/nccl/nccl_library.h"

namespace sherd::internal {

// Nanoseconds of CLOCK_MONOTONIC, the clock of deadlines.
int64_t NcclClock();

// The context that is current in the calling thread, or null.
void* CurrentContext(const CudaContextApi& cuda);

// Runs `body` on a thread of its own with `context` current in it: some of
// NCCL's calls wait and know no deadline. Returns whether it has ended by the
// deadline; if not, it goes on, and owns everything that it uses. A deadline
// that has passed already: does not wait. Where no thread can be had, runs it
// in the calling one.
bool RunWithDeadline(const CudaContextApi& cuda, void* context,
                     std::function<void()> body, int64_t deadline);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_NCCL_RUN_WITH_DEADLINE_H_
