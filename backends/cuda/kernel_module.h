#ifndef SHERD_BACKENDS_CUDA_KERNEL_MODULE_H_
#define SHERD_BACKENDS_CUDA_KERNEL_MODULE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/driver_api.h"

namespace sherd::internal {

// The kernels of this build on one device.
//
// The caller of each function makes the device's context current.
//
// Threads. Safe.
class KernelModule {
 public:
  // `image` is the argument of cuModuleLoadData, or null in a build without
  // nvcc. With null the driver decides, since an emulated one implements the
  // kernels itself.
  KernelModule(const CudaFunctions& cuda, const void* image)
      : cuda_(cuda), image_(image) {}

  // Loads all kernels that have code for the device. Otherwise each is loaded
  // at its first use, and the driver may wait for that until the context is
  // idle (CUDA's lazy loading). That would deadlock with work that waits for
  // another rank which waits for the calling thread.
  void LoadAll();

  // Finds the kernel `name`, a string that lives forever.
  //   SHERD_UNSUPPORTED  No code for this device or driver, or none at all.
  //
  // Cost. A search through the names used so far; no lock if it is one of them.
  sherd_code Find(const char* name, CUfunction* kernel, sherd_error_v0* error);

 private:
  struct Entry {
    const char* name = nullptr;
    CUfunction kernel = nullptr;
  };

  CUfunction FindKnown(const char* name) const;
  // The caller holds mutex_.
  sherd_code Load(sherd_error_v0* error);
  sherd_code FailLoad(const char* function, CUresult result, const char* name,
                      sherd_error_v0* error);

  const CudaFunctions& cuda_;
  const void* const image_;
  std::mutex mutex_;
  CUmodule module_ = nullptr;  // guarded by mutex_
  // [0, num_known_) are constant.
  std::array<Entry, 128> known_;
  std::atomic<size_t> num_known_{0};
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_KERNEL_MODULE_H_
