#ifndef SHERD_BACKENDS_NCCL_NCCL_LIBRARY_H_
#define SHERD_BACKENDS_NCCL_NCCL_LIBRARY_H_

#include <string>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/nccl/nccl_api.h"

namespace sherd::internal {

// The oldest supported NCCL. ncclCommSplit exists from 2.18 on, but those
// releases do not support an abort by another thread, and crash at the end.
constexpr int kOldestNccl = NcclVersion(2, 19, 4);

// The part of CUDA's driver that the plugin itself needs: to find out whether
// there is a driver, and to give its callers' contexts to its own threads.
struct CudaContextApi {
  int (*init)(unsigned int flags) = nullptr;      // cuInit
  int (*device_get_count)(int* count) = nullptr;  // cuDeviceGetCount
  int (*get_error_name)(int error, const char** name) = nullptr;
  int (*ctx_get_current)(void** context) = nullptr;  // cuCtxGetCurrent
  int (*ctx_set_current)(void* context) = nullptr;   // cuCtxSetCurrent
};

// NCCL and the driver as found by this process.
struct NcclLibrary {
  NcclApi api;
  CudaContextApi cuda;
  int version = 0;
  // "2.28.9 from /usr/lib/libnccl.so.2".
  std::string description;
  // Why NCCL cannot be used: what was tried and what is missing. Empty if it
  // can.
  std::string nccl_problem;
  // The same for the driver.
  std::string driver_problem;
};

// "2.28.9".
std::string NcclVersionText(int version);

// Opens NCCL and the driver; starts neither. NCCL is
//   1. the library that the setting "nccl_library" names, if it is set;
//   2. the copy that the process has loaded already;
//   3. libnccl.so.2 as the dynamic linker finds it;
//   4. the one in a directory where NVIDIA's packages install it.
// The driver is the setting "cuda_library" or libcuda.so.1. The libraries are
// never closed.
NcclLibrary OpenNcclLibrary(const sherd_host_v0& host);

// Checks whether there is a device: starts the driver, but uses no device.
sherd_code ProbeNccl(const NcclLibrary& library, sherd_error_v0* error);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_NCCL_NCCL_LIBRARY_H_
