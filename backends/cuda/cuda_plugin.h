#ifndef SHERD_BACKENDS_CUDA_CUDA_PLUGIN_H_
#define SHERD_BACKENDS_CUDA_CUDA_PLUGIN_H_

#include <cstdint>
#include <utility>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/cuda_devices.h"
#include "sherd/backends/cuda/cuda_work.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/cuda/ipc_memory.h"
#include "sherd/backends/cuda/pinned_memory.h"
#include "sherd/backends/device_abi.h"

namespace sherd::internal {

// The implementation of the device plugin's table (the functions in
// device_abi.h are the members of the same names), on any copy of the driver.
//
// Threads. Safe.
class CudaPlugin {
 public:
  // As for CudaDevices.
  CudaPlugin(CudaDevices::Opener open, const void* image)
      : devices_(std::move(open), image) {}
  CudaPlugin(const CudaPlugin&) = delete;
  CudaPlugin& operator=(const CudaPlugin&) = delete;

  const char* LibraryVersion();
  sherd_code Probe(sherd_error_v0* error) { return devices_.Start(error); }
  sherd_code Count(int32_t* devices, sherd_error_v0* error);
  sherd_code Describe(int32_t device, sherd_device_info_v0* info,
                      sherd_error_v0* error);
  sherd_code GetCurrent(int32_t* device, sherd_error_v0* error);
  sherd_code SetCurrent(int32_t device, sherd_error_v0* error);

  sherd_code Allocate(int32_t device, uint64_t bytes, void* stream, void** data,
                      sherd_error_v0* error);
  sherd_code Deallocate(int32_t device, void* data, uint64_t bytes,
                        void* stream, sherd_error_v0* error);
  sherd_code AllocatePinned(uint64_t bytes, void** data, sherd_error_v0* error);
  sherd_code DeallocatePinned(void* data, uint64_t bytes);
  sherd_code Statistics(int32_t device, sherd_device_memory_v0* memory,
                        sherd_error_v0* error);
  sherd_code Trim(sherd_error_v0* error);
  sherd_code Locate(const void* data, int32_t* device, sherd_error_v0* error);

  sherd_code CreateStream(int32_t device, bool high_priority, void** stream,
                          sherd_error_v0* error);
  sherd_code DestroyStream(int32_t device, void* stream, sherd_error_v0* error);
  sherd_code IsCapturing(int32_t device, void* stream, int32_t* capturing,
                         sherd_error_v0* error);

  sherd_code TakeEvent(int32_t device, void** event, sherd_error_v0* error);
  void ReturnEvent(int32_t device, void* event);
  sherd_code RecordEvent(int32_t device, void* event, void* stream,
                         sherd_error_v0* error);
  sherd_code WaitEvent(int32_t device, void* stream, void* event,
                       sherd_error_v0* error);
  sherd_code QueryEvent(void* event, sherd_error_v0* error);

  // CopyBytes, Copy, Fill, Random, Reduce and PoolRows.
  CudaWork& work() { return work_; }

  sherd_code AllocateShared(int32_t device, uint64_t bytes, void** data,
                            sherd_error_v0* error);
  sherd_code DeallocateShared(int32_t device, void* data, uint64_t bytes,
                              sherd_error_v0* error);
  sherd_code ExportMemory(int32_t device, const void* data, uint64_t bytes,
                          sherd_device_handle_v0* handle,
                          sherd_error_v0* error);
  sherd_code ImportMemory(int32_t device, const sherd_device_handle_v0& handle,
                          void** data, sherd_error_v0* error);
  void CloseMemory(int32_t device, void* data);
  sherd_code Reach(int32_t device, int32_t owner, int32_t* reachable,
                   sherd_error_v0* error);

 private:
  CudaDevices devices_;
  const CudaFunctions& cuda_{devices_.cuda()};
  PinnedMemory pinned_{cuda_};
  IpcMemory ipc_{cuda_};
  CudaWork work_{devices_, pinned_};
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_CUDA_PLUGIN_H_
