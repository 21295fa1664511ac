#ifndef SHERD_BACKENDS_CUDA_DEVICE_MEMORY_H_
#define SHERD_BACKENDS_CUDA_DEVICE_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/block_cache.h"
#include "sherd/backends/cuda/driver_api.h"

namespace sherd::internal {

// Memory of one device.
//
// It comes from a pool of the driver, ordered by streams, which keeps freed
// memory. A device without pools allocates directly, and freeing waits for the
// stream. Memory that other processes map comes from a cache of its own,
// because the driver does not export a pool's memory through plain handles.
//
// The caller of each function makes the device's context current.
//
// Threads. Safe, after Start.
class DeviceMemory {
 public:
  DeviceMemory(const CudaFunctions& cuda, int device)
      : cuda_(cuda), device_(device) {}

  // Call it before all others. `handle` is that of the device.
  sherd_code Start(CUdevice handle, sherd_error_v0* error);

  // Memory that is allocated while `stream` is captured belongs to the graph.
  //   SHERD_UNSUPPORTED  The stream is captured, and the device has no pools.
  sherd_code Allocate(uint64_t bytes, CUstream stream, void** data,
                      sherd_error_v0* error);
  // While `stream` is captured, memory that does not belong to the graph is
  // freed later, without a call of the driver: a refused call would end the
  // capture.
  sherd_code Free(void* data, uint64_t bytes, CUstream stream,
                  sherd_error_v0* error);

  // Call it before `stream` is destroyed.
  void Leave(CUstream stream);

  sherd_code AllocateShared(uint64_t bytes, void** data, sherd_error_v0* error);
  void FreeShared(void* data, uint64_t bytes);

  sherd_code Trim(sherd_error_v0* error);
  sherd_code GetStatistics(uint64_t* live_bytes, uint64_t* cached_bytes,
                           sherd_error_v0* error);

  // Lets another device access the pool's memory.
  sherd_code LetAccess(CUdevice other, sherd_error_v0* error);

 private:
  // Handles refer to whole pages of the device.
  static constexpr uint64_t kSharedGranularity = uint64_t{2} << 20;

  // Configures a new pool.
  CUresult SetUp(CUmemoryPool pool);
  CUresult TryAllocate(uint64_t bytes, CUstream stream, CUdeviceptr* data);
  sherd_code FailAllocation(const char* function, CUresult result,
                            uint64_t bytes, sherd_error_v0* error);
  bool IsCapturing(CUstream stream);
  sherd_code FreeNow(CUdeviceptr data, uint64_t bytes, CUstream stream,
                     sherd_error_v0* error);
  // Returns whether `data` was allocated during a capture, and forgets it if
  // so.
  bool TakeGraphs(CUdeviceptr data);
  // Frees the memory of streams that are no longer captured.
  void FreePostponed();
  // Returns whether any memory was released.
  bool ReleaseShared();

  const CudaFunctions& cuda_;
  const int device_;
  CUmemoryPool pool_ = nullptr;  // null if the device has no pools

  // Allocated outside of the pool.
  std::atomic<uint64_t> direct_bytes_{0};
  std::atomic<uint64_t> shared_bytes_{0};
  BlockCache shared_{kSharedGranularity};

  struct Postponed {
    CUdeviceptr data;
    uint64_t bytes;
    CUstream stream;
  };

  std::atomic<bool> has_postponed_{false};
  std::atomic<bool> has_graphs_{false};
  std::mutex mutex_;
  std::vector<Postponed> postponed_;  // guarded by mutex_
  std::set<CUdeviceptr> graphs_;      // guarded by mutex_
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_DEVICE_MEMORY_H_
