#ifndef SHERD_BACKENDS_SHM_MEMORY_HEADROOM_H_
#define SHERD_BACKENDS_SHM_MEMORY_HEADROOM_H_

#include <cstdint>

namespace sherd::internal {

// All memory of this machine, in bytes.
uint64_t MachineMemory();

// How many bytes this process could still take before the system, or a control
// group that it is in, runs out and would kill somebody: an estimate, which
// counts file caches as free. UINT64_MAX if the system does not say.
//
// Cost. Some tens of microseconds.
uint64_t MemoryHeadroom();

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_MEMORY_HEADROOM_H_
