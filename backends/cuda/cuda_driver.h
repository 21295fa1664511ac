#ifndef SHERD_BACKENDS_CUDA_CUDA_DRIVER_H_
#define SHERD_BACKENDS_CUDA_CUDA_DRIVER_H_

#include <string>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/driver_api.h"

namespace sherd::internal {

// The driver of CUDA 11.2, the first with pools of memory.
inline constexpr int kOldestCudaDriver = 11020;

// A copy of the driver's library.
struct CudaLibrary {
  CudaFunctions functions;
  std::string path;
  // 13020 is 13.2.
  int version = 0;
};

// "13.2"
std::string CudaVersionText(int version);

// Loads a driver's library and never closes it: the one with that name or path,
// unless it is empty; otherwise the copy that this process has loaded already;
// otherwise libcuda.so.1. Calls nothing in it but cuDriverGetVersion.
//   SHERD_SYSTEM  There is no such library, it is not a driver, or it is too
//                 old; the message lists what was looked for.
sherd_code OpenCudaLibrary(const char* setting, CudaLibrary* library,
                           sherd_error_v0* error);

// Initialises the driver, but no device, and counts the devices.
//   SHERD_SYSTEM  The driver is too old (kOldestCudaDriver) or does not work,
//                 or there is no device.
sherd_code StartCuda(CudaLibrary* library, int* devices, sherd_error_v0* error);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_CUDA_DRIVER_H_
