#ifndef SHERD_TOOLS_BENCH_HARNESS_PROPORTIONAL_MEMORY_H_
#define SHERD_TOOLS_BENCH_HARNESS_PROPORTIONAL_MEMORY_H_

#include <cstdint>

namespace sherd {

// The memory of this process in bytes, where a page that several processes map
// is divided between them: the sum over processes counts nothing twice. Returns
// -1 if the kernel does not report it.
//
// Cost. The kernel looks at every page: up to a tenth of a second per GiB.
int64_t ProportionalMemory();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_PROPORTIONAL_MEMORY_H_
