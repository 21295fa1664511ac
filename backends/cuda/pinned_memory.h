#ifndef SHERD_BACKENDS_CUDA_PINNED_MEMORY_H_
#define SHERD_BACKENDS_CUDA_PINNED_MEMORY_H_

#include <cstdint>
#include <map>
#include <mutex>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/block_cache.h"
#include "sherd/backends/cuda/driver_api.h"

namespace sherd::internal {

// Pinned host memory, in whole pages. What is freed is kept, since freeing it
// waits for all devices.
//
// In all calls the context of some device is current.
//
// Threads. Safe.
class PinnedMemory {
 public:
  explicit PinnedMemory(const CudaFunctions& cuda) : cuda_(cuda) {}

  sherd_code Allocate(uint64_t bytes, void** data, sherd_error_v0* error);
  // Nothing on a device uses it any more.
  void Free(void* data, uint64_t bytes);
  void Trim();

 private:
  static constexpr uint64_t kPage = 4096;

  // `size` is not 0.
  CUresult AllocatePages(uint64_t size, void** data);

  const CudaFunctions& cuda_;
  BlockCache cache_{kPage};
  std::mutex mutex_;
  // What the driver calls blocks that begin elsewhere; guarded by mutex_.
  std::map<void*, void*> starts_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_PINNED_MEMORY_H_
