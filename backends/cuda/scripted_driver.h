#ifndef SHERD_BACKENDS_CUDA_SCRIPTED_DRIVER_H_
#define SHERD_BACKENDS_CUDA_SCRIPTED_DRIVER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/cuda_devices.h"
#include "sherd/backends/cuda/cuda_driver.h"
#include "sherd/backends/cuda/driver_api.h"

namespace sherd::internal {

// A driver for tests, in this process: it keeps contexts and the addresses of
// memory, counts calls, and fails where a test says so. Nothing runs on its
// devices.
//
// One at a time, used by one thread.
class ScriptedDriver {
 public:
  explicit ScriptedDriver(int num_devices = 2);
  ~ScriptedDriver();
  ScriptedDriver(const ScriptedDriver&) = delete;
  ScriptedDriver& operator=(const ScriptedDriver&) = delete;

  // What the functions do; a test may replace any.
  struct Handlers {
#define SHERD_CUDA_HANDLER(name, symbol, parameters) \
  std::function<CUresult parameters> name;
    SHERD_CUDA_FUNCTIONS(SHERD_CUDA_HANDLER)
#undef SHERD_CUDA_HANDLER
  };
  Handlers on;

  static CudaFunctions Functions();
  // Opens it, as version `version` in "scripted".
  CudaDevices::Opener Opener();

  // From now on calls of a symbol, from call number `call` on (0: the next),
  // return `result` and do nothing.
  void Fail(absl::string_view symbol, CUresult result, int call = 0);
  // Calls of a symbol so far; of all if it is empty.
  int calls(absl::string_view symbol = "") const;
  void ForgetCalls();

  static CUcontext ContextOf(int device);
  static CUstream StreamNumber(uintptr_t number) {
    return reinterpret_cast<CUstream>(0x7000 + number * 16);
  }

  // What the driver is in.
  int version = 13000;
  bool has_pools = true;
  bool uses_host_pages = false;
  bool can_access_peer = true;
  std::set<CUstream> capturing;
  std::vector<CUcontext> contexts;  // of the thread; the last is current
  int capture_mode = 0;
  std::map<CUdeviceptr, size_t> memory;  // of devices
  std::set<CUdeviceptr> graphs;          // of it: what belongs to graphs
  std::map<void*, size_t> pinned;
  std::map<CUdeviceptr, size_t> opened;  // of other processes
  // What frees were queued on.
  std::vector<std::pair<CUdeviceptr, CUstream>> frees;
  std::vector<std::string> kernels;  // launched

 private:
  friend struct ScriptedCalls;

  void SetDriverHandlers();
  void SetContextHandlers();
  void SetMemoryHandlers();
  void SetIpcHandlers();
  void SetStreamHandlers();
  void SetWorkHandlers();

  enum Index {
#define SHERD_CUDA_INDEX(name, symbol, parameters) k##name,
    SHERD_CUDA_FUNCTIONS(SHERD_CUDA_INDEX)
#undef SHERD_CUDA_INDEX
        kNumFunctions
  };
  static int IndexOf(absl::string_view symbol);

  struct Fault {
    int calls_left = -1;
    CUresult result = kCudaSuccess;
  };

  const int num_devices_;
  std::array<int, kNumFunctions> calls_ = {};
  std::array<Fault, kNumFunctions> faults_ = {};
  uint64_t next_address_ = 0x100000;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_SCRIPTED_DRIVER_H_
