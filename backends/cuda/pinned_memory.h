#ifndef SHERD_BACKENDS_CUDA_PINNED_MEMORY_H_
#define SHERD_BACKENDS_CUDA_PINNED_MEMORY_H_

#include <cstdint>
#include <map>
#include <mutex>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/block_cache.h"
#include "sherd/backends/cuda/driver_api.h"

namespace sherd::internal {

// Pinned host memory, in whole pages. Freed memory is kept, since freeing it
// waits for all devices.
//
// The caller of each function makes the context of some device current.
//
// Threads. Safe.
class PinnedMemory {
 public:
  explicit PinnedMemory(const CudaFunctions& cuda) : cuda_(cuda) {}

  sherd_code Allocate(uint64_t bytes, void** data, sherd_error_v0* error);
  // Call it once no device uses the memory.
  void Free(void* data, uint64_t bytes);
  void Trim();

 private:
  static constexpr uint64_t kPage = 4096;

  // `size` is not 0.
  CUresult AllocatePages(uint64_t size, void** data);

  const CudaFunctions& cuda_;
  BlockCache cache_{kPage};
  std::mutex mutex_;
  // The driver's addresses of blocks that begin elsewhere; guarded by mutex_.
  std::map<void*, void*> starts_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_PINNED_MEMORY_H_
