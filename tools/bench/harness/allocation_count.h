#ifndef SHERD_TOOLS_BENCH_HARNESS_ALLOCATION_COUNT_H_
#define SHERD_TOOLS_BENCH_HARNESS_ALLOCATION_COUNT_H_

#include <cstdint>

namespace sherd {

// How often this thread has called operator new; this target contains the
// operator that counts.
int64_t AllocationsOfThisThread();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_ALLOCATION_COUNT_H_
