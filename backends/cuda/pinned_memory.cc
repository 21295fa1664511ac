#include "sherd/backends/cuda/pinned_memory.h"

#include <cinttypes>
#include <cstdio>

#include "sherd/backends/cuda/cuda_error.h"
#include "sherd/backends/cuda/cuda_scope.h"

namespace sherd::internal {

sherd_code PinnedMemory::Allocate(uint64_t bytes, void** data,
                                  sherd_error_v0* error) {
  const uint64_t size = cache_.SizeFor(bytes);
  *data = cache_.Take(size);
  if (*data != nullptr) return SHERD_OK;

  const RelaxedCaptureScope relaxed(cuda_);
  CUresult result = kCudaOutOfMemory;
  if (size != 0) {
    result = cuda_.MemHostAlloc(data, size, kCudaHostAllocPortable);
    if (result == kCudaOutOfMemory) {
      Trim();
      result = cuda_.MemHostAlloc(data, size, kCudaHostAllocPortable);
    }
  }
  if (result == kCudaSuccess) return SHERD_OK;
  *data = nullptr;
  char detail[64];
  std::snprintf(detail, sizeof(detail), "for %" PRIu64 " pinned bytes", bytes);
  return FailCuda(error, cuda_, "cuMemHostAlloc", result, detail);
}

void PinnedMemory::Free(void* data, uint64_t bytes) {
  cache_.Put(data, cache_.SizeFor(bytes));
}

void PinnedMemory::Trim() {
  const RelaxedCaptureScope relaxed(cuda_);
  for (void* block : cache_.TakeAll()) cuda_.MemFreeHost(block);
}

}  // namespace sherd::internal
