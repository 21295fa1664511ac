#ifndef SHERD_TESTING_EMULATED_GPU_MEMORY_DEVICE_MEMORY_H_
#define SHERD_TESTING_EMULATED_GPU_MEMORY_DEVICE_MEMORY_H_

#include <cstdint>

#include "sherd/testing/emulated_gpu/driver/driver.h"

namespace sherd::testing {

// How memory comes and goes. Results are CUresults.

// As cuMemAlloc: memory that may be used at once. Called with the lock.
int AllocateOnHost(Device& device, uint64_t bytes, AllocationRef* allocation);

// As cuMemFree and cuMemFreeHost: waits for the device first. Called without
// the lock. `kind` is what the memory has to be.
int FreeSynchronously(uint64_t address, const char* function,
                      MemoryLocation::Kind kind);

// As cuMemAllocFromPoolAsync and cuMemFreeAsync. Called with the lock.
int AllocateOnStream(MemoryPool& pool, uint64_t bytes, Stream& stream,
                     AllocationRef* allocation);
int FreeOnStream(uint64_t address, Stream& stream);

// What is used, and kept by pools.
uint64_t UsedBytes(const Device& device);

// What pools of a device keep beyond their thresholds goes.
void ReleaseUnused(Device& device);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_MEMORY_DEVICE_MEMORY_H_
