#ifndef SHERD_BACKENDS_CUDA_CUDA_ERROR_H_
#define SHERD_BACKENDS_CUDA_CUDA_ERROR_H_

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/driver_api.h"

namespace sherd::internal {

// Whether the result reports that earlier work on the device failed, after
// which the driver refuses every call of this process.
bool IsSticky(CUresult result);

// The code of the plugin ABI for a result that is not kCudaSuccess:
//   SHERD_RESOURCE          out of memory
//   SHERD_UNSUPPORTED       the device, the driver or a capture rules it out
//   SHERD_INVALID_ARGUMENT  an invalid address, handle or device
//   SHERD_SYSTEM            all others, including sticky ones
sherd_code CodeOfCuda(CUresult result);

// Fills `error` and returns the code for a result. The text contains the
// function, the name and number of the result, `detail` (such as "for 8 bytes";
// may be empty), and what to do. Functions of `cuda` may be null.
sherd_code FailCuda(sherd_error_v0* error, const CudaFunctions& cuda,
                    const char* function, CUresult result,
                    const char* detail = "");

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_CUDA_ERROR_H_
