#include "sherd/backends/cuda/nvtx_ranges.h"

// Headers only: a profiler brings the library.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define SHERD_HAS_NVTX 1
#endif

namespace sherd::internal {

#ifdef SHERD_HAS_NVTX

void PushNvtxRange(const char* name) { nvtxRangePushA(name); }
void PopNvtxRange() { nvtxRangePop(); }

#else

void PushNvtxRange(const char*) {}
void PopNvtxRange() {}

#endif

}  // namespace sherd::internal
