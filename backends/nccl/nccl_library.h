#ifndef SHERD_BACKENDS_NCCL_NCCL_LIBRARY_H_
#define SHERD_BACKENDS_NCCL_NCCL_LIBRARY_H_

#include <string>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/nccl/nccl_api.h"

namespace sherd::internal {

// The oldest NCCL that will do. Those before it have ncclCommSplit too, from
// 2.18 on, but do not bear an abort by another thread, and crash at the end.
constexpr int kOldestNccl = NcclVersion(2, 19, 4);

// What the plugin itself needs of CUDA's driver: to know whether there is one,
// and to give the contexts of its callers to threads of its own.
struct CudaContextApi {
  int (*init)(unsigned int flags) = nullptr;      // cuInit
  int (*device_get_count)(int* count) = nullptr;  // cuDeviceGetCount
  int (*get_error_name)(int error, const char** name) = nullptr;
  int (*ctx_get_current)(void** context) = nullptr;  // cuCtxGetCurrent
  int (*ctx_set_current)(void* context) = nullptr;   // cuCtxSetCurrent
};

// NCCL and the driver as this process found them.
struct NcclLibrary {
  NcclApi api;
  CudaContextApi cuda;
  int version = 0;
  // "2.28.9 from /usr/lib/libnccl.so.2".
  std::string description;
  // Why NCCL cannot be used: what was tried and what is missing. Empty if it
  // can.
  std::string nccl_problem;
  // The same of the driver.
  std::string driver_problem;
};

// "2.28.9".
std::string NcclVersionText(int version);

// Opens NCCL and the driver; neither is started. NCCL is
//   1. what the setting "nccl_library" names, and nothing else if it does;
//   2. the copy that the process has loaded already;
//   3. libnccl.so.2 as the dynamic linker finds it;
//   4. the one in a directory where NVIDIA's packages put it.
// The driver is the setting "cuda_library" or libcuda.so.1. Nothing is ever
// closed.
NcclLibrary OpenNcclLibrary(const sherd_host_v0& host);

// Says whether there is a device: starts the driver, but uses no device.
sherd_code ProbeNccl(const NcclLibrary& library, sherd_error_v0* error);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_NCCL_NCCL_LIBRARY_H_
