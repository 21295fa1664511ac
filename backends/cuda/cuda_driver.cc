#include "sherd/backends/cuda/cuda_driver.h"

#include <dlfcn.h>

#include <cstdio>
#include <string>

#include "sherd/backends/cuda/cuda_error.h"
#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

constexpr const char* kUsualName = "libcuda.so.1";

sherd_code FailWith(sherd_error_v0* error, const std::string& text) {
  return Fail(error, SHERD_SYSTEM, -1, text.c_str());
}

void* OpenLibrary(const char* setting) {
  constexpr int kFlags = RTLD_NOW | RTLD_LOCAL;
  if (*setting != '\0') return dlopen(setting, kFlags);
  void* const loaded = dlopen(kUsualName, kFlags | RTLD_NOLOAD);
  return loaded != nullptr ? loaded : dlopen(kUsualName, kFlags);
}

sherd_code FailTooOld(sherd_error_v0* error, const CudaLibrary& library,
                      const std::string& why) {
  return FailWith(
      error, "CUDA driver " +
                 (library.version > 0 ? CudaVersionText(library.version)
                                      : std::string("(of unknown version)")) +
                 " from " + library.path + " is too old" + why +
                 ": update it to one of CUDA " +
                 CudaVersionText(kOldestCudaDriver) + " or later");
}

// The first symbol that the library lacks, or null.
const char* Fill(void* handle, CudaFunctions* functions) {
  const char* missing = nullptr;
#define SHERD_CUDA_FIND(name, symbol, parameters)                         \
  functions->name =                                                       \
      reinterpret_cast<decltype(functions->name)>(dlsym(handle, symbol)); \
  if (functions->name == nullptr && missing == nullptr) missing = symbol;
  SHERD_CUDA_FUNCTIONS(SHERD_CUDA_FIND)
#undef SHERD_CUDA_FIND
  return missing;
}

}  // namespace

std::string CudaVersionText(int version) {
  return std::to_string(version / 1000) + "." +
         std::to_string(version % 1000 / 10);
}

sherd_code OpenCudaLibrary(const char* setting, CudaLibrary* library,
                           sherd_error_v0* error) {
  void* const handle = OpenLibrary(setting);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return FailWith(
        error, std::string("no CUDA driver: ") + (why != nullptr ? why : "") +
                   "; install NVIDIA's driver, or name its library by "
                   "SHERD_CUDA_LIBRARY");
  }
  const char* const missing = Fill(handle, &library->functions);
  library->path = *setting != '\0' ? setting : kUsualName;
  if (library->functions.Init == nullptr ||
      library->functions.DriverGetVersion == nullptr) {
    return FailWith(error, library->path +
                               " is not NVIDIA's CUDA driver: it lacks cuInit; "
                               "see SHERD_CUDA_LIBRARY");
  }
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(library->functions.Init), &info) != 0 &&
      info.dli_fname != nullptr) {
    library->path = info.dli_fname;
  }
  if (library->functions.DriverGetVersion(&library->version) != kCudaSuccess) {
    library->version = 0;
  }
  if (missing == nullptr) return SHERD_OK;
  return FailTooOld(error, *library, std::string(", it lacks ") + missing);
}

sherd_code StartCuda(CudaLibrary* library, int* devices,
                     sherd_error_v0* error) {
  const CudaFunctions& cuda = library->functions;
  const auto fail = [&](const char* function, CUresult result) {
    FailCuda(error, cuda, function, result);
    return SHERD_SYSTEM;
  };
  if (const CUresult result = cuda.DriverGetVersion(&library->version);
      result != kCudaSuccess) {
    return fail("cuDriverGetVersion", result);
  }
  // A stub has no version; its initialisation fails with its own error.
  if (library->version > 0 && library->version < kOldestCudaDriver) {
    return FailTooOld(error, *library, "");
  }
  if (const CUresult result = cuda.Init(0); result != kCudaSuccess) {
    return fail("cuInit", result);
  }
  // Some failures do not set the number.
  *devices = 0;
  if (const CUresult result = cuda.DeviceGetCount(devices);
      result != kCudaSuccess) {
    return fail("cuDeviceGetCount", result);
  }
  if (*devices < 1) return fail("cuDeviceGetCount", kCudaNoDevice);
  return SHERD_OK;
}

}  // namespace sherd::internal
