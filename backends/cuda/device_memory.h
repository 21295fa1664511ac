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
// From a pool of the driver's, in the order of streams, which keeps what is
// freed. A device without pools gets memory directly, and freeing waits for the
// stream. Memory for other processes does not come from the pool, which the
// driver does not let out through plain handles, and is kept in a cache.
//
// In all calls the device's context is current.
//
// Threads. Safe, after Start.
class DeviceMemory {
 public:
  DeviceMemory(const CudaFunctions& cuda, int device)
      : cuda_(cuda), device_(device) {}

  // Before all others. `handle`: of the device.
  sherd_code Start(CUdevice handle, sherd_error_v0* error);

  // While `stream` is captured, it belongs to the graph.
  //   SHERD_UNSUPPORTED  The stream is captured, and the device has no pools.
  sherd_code Allocate(uint64_t bytes, CUstream stream, void** data,
                      sherd_error_v0* error);
  // While `stream` is captured, what does not belong to the graph is freed
  // later, and the driver is not asked: what it refuses would end the capture.
  sherd_code Free(void* data, uint64_t bytes, CUstream stream,
                  sherd_error_v0* error);

  // Before `stream` is destroyed.
  void Leave(CUstream stream);

  sherd_code AllocateShared(uint64_t bytes, void** data, sherd_error_v0* error);
  void FreeShared(void* data, uint64_t bytes);

  sherd_code Trim(sherd_error_v0* error);
  sherd_code GetStatistics(uint64_t* live_bytes, uint64_t* cached_bytes,
                           sherd_error_v0* error);

  // Lets another device use what comes from the pool.
  sherd_code LetAccess(CUdevice other, sherd_error_v0* error);

 private:
  // Handles name whole pages of the device.
  static constexpr uint64_t kSharedGranularity = uint64_t{2} << 20;

  // How a new pool is to behave.
  CUresult SetUp(CUmemoryPool pool);
  CUresult TryAllocate(uint64_t bytes, CUstream stream, CUdeviceptr* data);
  sherd_code FailAllocation(const char* function, CUresult result,
                            uint64_t bytes, sherd_error_v0* error);
  bool IsCapturing(CUstream stream);
  sherd_code FreeNow(CUdeviceptr data, uint64_t bytes, CUstream stream,
                     sherd_error_v0* error);
  // Whether it was allocated while a stream was captured; it is forgotten.
  bool TakeGraphs(CUdeviceptr data);
  // What waits for streams that are not captured any more.
  void FreePostponed();
  // Whether there was any.
  bool ReleaseShared();

  const CudaFunctions& cuda_;
  const int device_;
  CUmemoryPool pool_ = nullptr;  // null if the device has no pools

  // Outside of the pool.
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
