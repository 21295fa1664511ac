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

// Runs `body` on a thread of its own with `context` current in it, because some
// of NCCL's calls wait and take no timeout. Returns whether `body` has ended by
// the deadline; if not, it continues, so it must own everything that it uses.
// Does not wait if the deadline has passed already. If no thread can be
// created, runs `body` in the calling thread.
bool RunWithDeadline(const CudaContextApi& cuda, void* context,
                     std::function<void()> body, int64_t deadline);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_NCCL_RUN_WITH_DEADLINE_H_
