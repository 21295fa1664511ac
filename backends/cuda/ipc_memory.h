#ifndef SHERD_BACKENDS_CUDA_IPC_MEMORY_H_
#define SHERD_BACKENDS_CUDA_IPC_MEMORY_H_

#include <map>
#include <mutex>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/device_abi.h"

namespace sherd::internal {

// Memory of devices that several processes of a host access.
//
// Handles are 12 words: 0 to 7 the driver's handle of an allocation, 8 a mark,
// 9 and 10 the offset and length in it, 11 zero.
//
// The caller of each function makes the device's context current.
//
// Threads. Safe.
class IpcMemory {
 public:
  explicit IpcMemory(const CudaFunctions& cuda) : cuda_(cuda) {}

  sherd_code Export(const void* data, uint64_t bytes,
                    sherd_device_handle_v0* handle, sherd_error_v0* error);
  sherd_code Import(const sherd_device_handle_v0& handle, void** data,
                    sherd_error_v0* error);
  void Close(void* data);

 private:
  const CudaFunctions& cuda_;
  std::mutex mutex_;
  // The address that Import returned, and where the allocation begins.
  std::multimap<void*, CUdeviceptr> imported_;  // guarded by mutex_
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_IPC_MEMORY_H_
