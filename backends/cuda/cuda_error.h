#ifndef SHERD_BACKENDS_CUDA_CUDA_ERROR_H_
#define SHERD_BACKENDS_CUDA_CUDA_ERROR_H_

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/driver_api.h"

namespace sherd::internal {

// Whether a result says that something which ran on the device failed, after
// which the driver refuses everything in this process.
bool IsSticky(CUresult result);

// The code of the plugin ABI for a result that is not kCudaSuccess:
//   SHERD_RESOURCE          out of memory
//   SHERD_UNSUPPORTED       the device, the driver or a capture rules it out
//   SHERD_INVALID_ARGUMENT  an address, a handle or a device that is none
//   SHERD_SYSTEM            all other, sticky ones too
sherd_code CodeOfCuda(CUresult result);

// Fills `error` and returns the code for a result: says the function, the name
// and number of the result, `detail` (such as "for 8 bytes"; may be empty), and
// what to do. The functions of `cuda` may be absent.
sherd_code FailCuda(sherd_error_v0* error, const CudaFunctions& cuda,
                    const char* function, CUresult result,
                    const char* detail = "");

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_CUDA_ERROR_H_
