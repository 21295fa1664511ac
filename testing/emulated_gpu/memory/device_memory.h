#ifndef SHERD_TESTING_EMULATED_GPU_MEMORY_DEVICE_MEMORY_H_
#define SHERD_TESTING_EMULATED_GPU_MEMORY_DEVICE_MEMORY_H_

#include <cstdint>

#include "sherd/testing/emulated_gpu/driver/driver.h"

namespace sherd::testing {

// Allocation and release of memory. Results are CUresults.

// As cuMemAlloc: memory that may be used at once. Called with the lock.
int AllocateOnHost(Device& device, uint64_t bytes, AllocationRef* allocation);

// As cuMemFree and cuMemFreeHost: waits for the device first. Called without
// the lock. `kind` is the required kind of the memory.
int FreeSynchronously(uint64_t address, const char* function,
                      MemoryLocation::Kind kind);

// As cuMemAllocFromPoolAsync and cuMemFreeAsync. Called with the lock.
int AllocateOnStream(MemoryPool& pool, uint64_t bytes, Stream& stream,
                     AllocationRef* allocation);
int FreeOnStream(uint64_t address, Stream& stream);

// Bytes that are in use, and bytes that pools keep.
uint64_t UsedBytes(const Device& device);

// Frees what a device's pools keep beyond their thresholds.
void ReleaseUnused(Device& device);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_MEMORY_DEVICE_MEMORY_H_
