#include "sherd/backends/cuda/pinned_memory.h"

#include <cinttypes>
#include <cstdio>
#include <mutex>

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
    result = AllocatePages(size, data);
    if (result == kCudaOutOfMemory) {
      Trim();
      result = AllocatePages(size, data);
    }
  }
  if (result == kCudaSuccess) return SHERD_OK;
  *data = nullptr;
  char detail[64];
  std::snprintf(detail, sizeof(detail), "for %" PRIu64 " pinned bytes", bytes);
  return FailCuda(error, cuda_, "cuMemHostAlloc", result, detail);
}

CUresult PinnedMemory::AllocatePages(uint64_t size, void** data) {
  const CUresult result =
      cuda_.MemHostAlloc(data, size, kCudaHostAllocPortable);
  const auto beyond_page = [&] {
    return reinterpret_cast<uintptr_t>(*data) % kPage;
  };
  if (result != kCudaSuccess || beyond_page() == 0) return result;
  // The driver promises no alignment, and may cut blocks out of larger ones in
  // which others have smaller ones.
  cuda_.MemFreeHost(*data);
  if (const CUresult larger =
          cuda_.MemHostAlloc(data, size + kPage, kCudaHostAllocPortable);
      larger != kCudaSuccess) {
    return larger;
  }
  void* const start = *data;
  *data = static_cast<char*>(start) + (kPage - beyond_page()) % kPage;
  std::lock_guard<std::mutex> lock(mutex_);
  starts_[*data] = start;
  return kCudaSuccess;
}

void PinnedMemory::Free(void* data, uint64_t bytes) {
  cache_.Put(data, cache_.SizeFor(bytes));
}

void PinnedMemory::Trim() {
  const RelaxedCaptureScope relaxed(cuda_);
  for (void* block : cache_.TakeAll()) {
    void* start = block;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (const auto found = starts_.find(block); found != starts_.end()) {
        start = found->second;
        starts_.erase(found);
      }
    }
    cuda_.MemFreeHost(start);
  }
}

}  // namespace sherd::internal
