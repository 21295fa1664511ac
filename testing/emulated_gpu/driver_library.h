#ifndef SHERD_TESTING_EMULATED_GPU_DRIVER_LIBRARY_H_
#define SHERD_TESTING_EMULATED_GPU_DRIVER_LIBRARY_H_

#include <dlfcn.h>

#include <cstdint>
#include <string>

#include "sherd/backends/cuda/driver_api.h"
#include "sherd/testing/emulated_gpu/graph_api.h"

namespace sherd::testing {

// The emulated driver as tests use it: the library that is already loaded, or
// is loaded now. Its functions, those of graph_api.h, and the control of
// control.h.
//
// A test of other layers does not call cu* functions; it uses `findings` and
// other parts of the control from here.
struct DriverLibrary {
  ::sherd::internal::CudaFunctions cuda;
  TestCudaFunctions more;

  int (*set_abort_on_finding)(int) = nullptr;
  uint64_t (*findings)(int) = nullptr;
  uint64_t (*last_finding)(char*, uint64_t) = nullptr;
  void (*set_seed)(uint64_t) = nullptr;
  int (*set_faults)(const char*) = nullptr;
  void (*set_device_bytes)(uint64_t) = nullptr;
  int (*hold_streams)(int) = nullptr;

  // Empty, or a description of what was not found.
  std::string problem;

  // `path` as for SHERD_CUDA_LIBRARY. A library of a real driver has `cuda` and
  // `more`, and no control.
  static DriverLibrary Load(const char* path) {
    DriverLibrary library;
    void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      library.problem = dlerror();
      return library;
    }
    const auto find = [&](const char* symbol, auto* function) {
      void* const found = dlsym(handle, symbol);
      if (found == nullptr) library.problem += std::string(" ") + symbol;
      *function =
          reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found);
    };
#define SHERD_FIND_CUDA(name, symbol, parameters) \
  find(symbol, &library.cuda.name);
    SHERD_CUDA_FUNCTIONS(SHERD_FIND_CUDA)
#undef SHERD_FIND_CUDA
#define SHERD_FIND_CUDA(name, symbol, parameters) \
  find(symbol, &library.more.name);
    SHERD_TEST_CUDA_FUNCTIONS(SHERD_FIND_CUDA)
#undef SHERD_FIND_CUDA
    find("sherd_emulated_gpu_set_abort_on_finding",
         &library.set_abort_on_finding);
    find("sherd_emulated_gpu_findings", &library.findings);
    find("sherd_emulated_gpu_last_finding", &library.last_finding);
    find("sherd_emulated_gpu_set_seed", &library.set_seed);
    find("sherd_emulated_gpu_set_faults", &library.set_faults);
    find("sherd_emulated_gpu_set_device_bytes", &library.set_device_bytes);
    find("sherd_emulated_gpu_hold_streams", &library.hold_streams);
    return library;
  }

  std::string LastFinding() const {
    std::string text(last_finding(nullptr, 0) + 1, '\0');
    last_finding(text.data(), text.size());
    text.pop_back();
    return text;
  }
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_DRIVER_LIBRARY_H_
