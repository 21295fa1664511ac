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
// In all calls the device's context is current.
//
// Threads. Safe.
class KernelModule {
 public:
  // `image`: for cuModuleLoadData, or null in a build without nvcc. Then the
  // driver decides, since an emulated one has the kernels itself.
  KernelModule(const CudaFunctions& cuda, const void* image)
      : cuda_(cuda), image_(image) {}

  // Loads all that there is code for. Otherwise each is loaded when it is asked
  // for first, for which the driver may wait until nothing runs in the context
  // (CUDA's lazy loading): not even what waits for another rank, which may be
  // waiting for the calling thread.
  void LoadAll();

  // The kernel of a name that lives for ever.
  //   SHERD_UNSUPPORTED  No code for this device or driver, or none at all.
  //
  // Cost. A look through the names asked for before; no lock, if it was.
  sherd_code Find(const char* name, CUfunction* kernel, sherd_error_v0* error);

 private:
  struct Entry {
    const char* name = nullptr;
    CUfunction kernel = nullptr;
  };

  CUfunction FindKnown(const char* name) const;
  // mutex_ is held.
  sherd_code Load(sherd_error_v0* error);
  sherd_code FailLoad(const char* function, CUresult result, const char* name,
                      sherd_error_v0* error);

  const CudaFunctions& cuda_;
  const void* const image_;
  std::mutex mutex_;
  CUmodule module_ = nullptr;  // guarded by mutex_
  // [0, num_known_) do not change any more.
  std::array<Entry, 128> known_;
  std::atomic<size_t> num_known_{0};
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_KERNEL_MODULE_H_
