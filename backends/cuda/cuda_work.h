#ifndef SHERD_BACKENDS_CUDA_CUDA_WORK_H_
#define SHERD_BACKENDS_CUDA_CUDA_WORK_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/cuda_devices.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/cuda/event_pool.h"
#include "sherd/backends/cuda/launch_plan.h"
#include "sherd/backends/cuda/pinned_memory.h"
#include "sherd/backends/device_abi.h"

namespace sherd::internal {

// Work on streams as defined in device_abi.h: kernels, and the driver's own
// operations.
//
// Threads. Safe.
class CudaWork {
 public:
  CudaWork(CudaDevices& devices, PinnedMemory& pinned)
      : devices_(devices), cuda_(devices.cuda()), pinned_(pinned) {}

  sherd_code CopyBytes(int32_t device, void* stream, void* dst, const void* src,
                       uint64_t bytes, sherd_error_v0* error);
  sherd_code Copy(int32_t device, void* stream,
                  const sherd_strided_copy_v0* copies, uint64_t num_copies,
                  sherd_error_v0* error);
  sherd_code Fill(int32_t device, void* stream, const sherd_fill_v0& fill,
                  sherd_error_v0* error);
  sherd_code Random(int32_t device, void* stream, const sherd_random_v0& random,
                    sherd_error_v0* error);
  sherd_code Reduce(int32_t device, void* stream, int32_t dtype,
                    int32_t reduction, void* out, const void* const* ins,
                    int32_t num_ins, uint64_t count, int32_t divisor,
                    sherd_error_v0* error);
  sherd_code PoolRows(int32_t device, void* stream,
                      const sherd_pool_rows_v0& pool, sherd_error_v0* error);

  // Frees the memory that completed launches needed.
  void ReclaimTables();

 private:
  // The table of a launch, while it is copied to the device.
  struct StagedTable {
    CudaDevice* device;
    void* data;
    uint64_t bytes;
    PooledEvent* read;
  };

  // The caller of these makes the device's context current.

  sherd_code CopyCurrent(CUstream stream, CUdeviceptr dst, CUdeviceptr src,
                         uint64_t bytes, sherd_error_v0* error);
  // Whether `data` is host memory that the driver has not pinned.
  bool IsPageable(CUdeviceptr data);
  // Null if `data` is not memory of a device that is in use.
  CudaDevice* DeviceOf(CUdeviceptr data);
  sherd_code RunPlan(CudaDevice& device, CUstream stream, LaunchPlan& plan,
                     sherd_error_v0* error);
  sherd_code Launch(CudaDevice& device, CUstream stream, LaunchPlan& plan,
                    const KernelLaunch& launch, sherd_error_v0* error);
  sherd_code StageTable(CudaDevice& device, CUstream stream, const void* table,
                        uint64_t bytes, void* at, sherd_error_v0* error);

  CudaDevices& devices_;
  const CudaFunctions& cuda_;
  PinnedMemory& pinned_;

  std::mutex mutex_;
  std::vector<StagedTable> staged_;  // guarded by mutex_
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_CUDA_WORK_H_
