#ifndef SHERD_BACKENDS_CUDA_CUDA_DEVICES_H_
#define SHERD_BACKENDS_CUDA_CUDA_DEVICES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/cuda_driver.h"
#include "sherd/backends/cuda/cuda_error.h"
#include "sherd/backends/cuda/cuda_scope.h"
#include "sherd/backends/cuda/device_memory.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/cuda/event_pool.h"
#include "sherd/backends/cuda/kernel_module.h"

namespace sherd::internal {

// A device and the state of its context.
struct CudaDevice {
  CudaDevice(const CudaFunctions& cuda, int index, const void* image)
      : index(index), memory(cuda, index), kernels(cuda, image), events(cuda) {}

  const int index;
  CUdevice handle = 0;
  // Null until the device is used, then constant.
  std::atomic<CUcontext> context{nullptr};

  // Valid once the device is used.
  int multiprocessors = 1;
  // The device reads all of the host's memory in place, as on GH200: queueing a
  // copy stages nothing.
  bool uses_host_pages = false;
  DeviceMemory memory;
  KernelModule kernels;
  EventPool events;

  std::mutex start_mutex;
  CUcontext retained = nullptr;  // guarded by start_mutex
};

// The driver and its devices.
//
// The driver is opened at first use; if that fails, later calls return the same
// error. Each device has its primary context, which programs that use the
// runtime API share. It is retained when the device is first used, and never
// released.
//
// Threads. Safe.
class CudaDevices {
 public:
  using Opener = std::function<sherd_code(CudaLibrary*, sherd_error_v0*)>;

  // `image`: as for KernelModule.
  CudaDevices(Opener open, const void* image);
  CudaDevices(const CudaDevices&) = delete;
  CudaDevices& operator=(const CudaDevices&) = delete;

  sherd_code Start(sherd_error_v0* error) {
    if (is_started_.load(std::memory_order_acquire)) return SHERD_OK;
    return StartOnce(error);
  }

  // Valid after Start was called.

  // Empty without a driver.
  const std::string& version_text() const { return version_text_; }
  // Null until the driver is opened.
  const CudaFunctions& cuda() const { return library_.functions; }
  const std::vector<std::unique_ptr<CudaDevice>>& all() const { return all_; }
  int num_used() const { return num_used_.load(std::memory_order_relaxed); }
  // A device that is in use, or null.
  CudaDevice* AnyUsed() const;
  // The device with the driver's handle `handle`, or null.
  CudaDevice* WithHandle(CUdevice handle) const;

  // The device with number `index`; does not initialise it.
  sherd_code Find(int32_t index, CudaDevice** device, sherd_error_v0* error);
  // The device with number `index`, initialised.
  sherd_code Use(int32_t index, CudaDevice** device, sherd_error_v0* error);

  // Initialises the device and runs body(device) with its context current.
  // Afterwards the calling thread's context is the same as before.
  template <typename Body>
  sherd_code With(int32_t index, sherd_error_v0* error, Body body) {
    CudaDevice* device = nullptr;
    if (const sherd_code code = Use(index, &device, error); code != SHERD_OK) {
      return code;
    }
    const ContextScope scope(cuda(),
                             device->context.load(std::memory_order_relaxed));
    if (scope.result() != kCudaSuccess) {
      return FailCuda(error, cuda(), "cuCtxPushCurrent", scope.result());
    }
    return body(*device);
  }

 private:
  sherd_code StartOnce(sherd_error_v0* error);
  sherd_code ListDevices(int count, sherd_error_v0* error);
  sherd_code StartDevice(CudaDevice& device, sherd_error_v0* error);

  const Opener open_;
  const void* const image_;

  std::atomic<bool> is_started_{false};
  std::mutex mutex_;
  sherd_code start_code_ = SHERD_IN_PROGRESS;  // guarded by mutex_
  sherd_error_v0 start_error_ = {};            // guarded by mutex_

  // Constant once started.
  CudaLibrary library_;
  std::string version_text_;
  std::vector<std::unique_ptr<CudaDevice>> all_;

  std::atomic<int> num_used_{0};
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_CUDA_DEVICES_H_
