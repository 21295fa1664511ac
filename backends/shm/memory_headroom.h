#ifndef SHERD_BACKENDS_SHM_MEMORY_HEADROOM_H_
#define SHERD_BACKENDS_SHM_MEMORY_HEADROOM_H_

#include <cstdint>

namespace sherd::internal {

// The memory of this machine, in bytes.
uint64_t MachineMemory();

// An estimate of the bytes that this process can still allocate before the
// system, or a control group that it is in, runs out and kills a process. File
// caches count as free. Returns UINT64_MAX if the system does not report it.
//
// Cost. Some tens of microseconds.
uint64_t MemoryHeadroom();

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_MEMORY_HEADROOM_H_
