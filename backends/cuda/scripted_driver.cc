#include "sherd/backends/cuda/scripted_driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

namespace sherd::internal {
namespace {

ScriptedDriver* current = nullptr;

constexpr const char* kSymbols[] = {
#define SHERD_CUDA_SYMBOL(name, symbol, parameters) symbol,
    SHERD_CUDA_FUNCTIONS(SHERD_CUDA_SYMBOL)
#undef SHERD_CUDA_SYMBOL
};

struct ErrorName {
  CUresult result;
  const char* name;
};
constexpr ErrorName kErrorNames[] = {
    {kCudaInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
    {kCudaOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
    {kCudaNotInitialized, "CUDA_ERROR_NOT_INITIALIZED"},
    {kCudaStubLibrary, "CUDA_ERROR_STUB_LIBRARY"},
    {kCudaNoDevice, "CUDA_ERROR_NO_DEVICE"},
    {kCudaNoBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {kCudaIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {kCudaUnknown, "CUDA_ERROR_UNKNOWN"},
};

// Gives back what std::erase of a map would.
template <typename Map, typename Key>
CUresult Remove(Map& map, const Key& key) {
  return map.erase(key) == 1 ? kCudaSuccess : kCudaInvalidValue;
}

}  // namespace

// The functions of the table: each counts, fails or calls its handler.
struct ScriptedCalls {
  template <int kIndex, auto kHandler, typename Function>
  struct Stub;
  template <int kIndex, auto kHandler, typename... Parameters>
  struct Stub<kIndex, kHandler, CUresult (*)(Parameters...)> {
    static CUresult Call(Parameters... parameters) {
      ++current->calls_[kIndex];
      ScriptedDriver::Fault& fault = current->faults_[kIndex];
      if (fault.calls_left == 0) return fault.result;
      if (fault.calls_left > 0) --fault.calls_left;
      return (current->on.*kHandler)(parameters...);
    }
  };

  static CudaFunctions Table() {
    CudaFunctions table;
#define SHERD_CUDA_STUB(name, symbol, parameters)                             \
  table.name = Stub<ScriptedDriver::k##name, &ScriptedDriver::Handlers::name, \
                    decltype(table.name)>::Call;
    SHERD_CUDA_FUNCTIONS(SHERD_CUDA_STUB)
#undef SHERD_CUDA_STUB
    return table;
  }
};

ScriptedDriver::ScriptedDriver(int num_devices) : num_devices_(num_devices) {
  current = this;
  SetDriverHandlers();
  SetContextHandlers();
  SetMemoryHandlers();
  SetIpcHandlers();
  SetStreamHandlers();
  SetWorkHandlers();
}

ScriptedDriver::~ScriptedDriver() {
  for (const auto& [data, bytes] : pinned) std::free(data);
  current = nullptr;
}

CudaFunctions ScriptedDriver::Functions() { return ScriptedCalls::Table(); }

CudaDevices::Opener ScriptedDriver::Opener() {
  return [this](CudaLibrary* library, sherd_error_v0*) {
    library->functions = Functions();
    library->path = "scripted";
    library->version = version;
    return sherd_code{SHERD_OK};
  };
}

int ScriptedDriver::IndexOf(absl::string_view symbol) {
  for (int i = 0; i < kNumFunctions; ++i) {
    if (kSymbols[i] == symbol) return i;
  }
  std::fprintf(stderr, "no function %.*s\n", static_cast<int>(symbol.size()),
               symbol.data());
  std::abort();
}

void ScriptedDriver::Fail(absl::string_view symbol, CUresult result, int call) {
  faults_[IndexOf(symbol)] = {call, result};
}

int ScriptedDriver::calls(absl::string_view symbol) const {
  if (!symbol.empty()) return calls_[IndexOf(symbol)];
  return std::accumulate(calls_.begin(), calls_.end(), 0);
}

void ScriptedDriver::ForgetCalls() { calls_.fill(0); }

CUcontext ScriptedDriver::ContextOf(int device) {
  return reinterpret_cast<CUcontext>(uintptr_t{0xc000} + 16 * device);
}

void ScriptedDriver::SetDriverHandlers() {
  on.GetErrorName = [](CUresult error, const char** name) {
    for (const ErrorName& known : kErrorNames) {
      if (known.result != error) continue;
      *name = known.name;
      return kCudaSuccess;
    }
    *name = nullptr;
    return kCudaInvalidValue;
  };
  on.GetErrorString = [](CUresult, const char** text) {
    *text = "";
    return kCudaSuccess;
  };
  on.DriverGetVersion = [this](int* number) {
    *number = version;
    return kCudaSuccess;
  };
  on.Init = [](unsigned) { return kCudaSuccess; };
  on.DeviceGetCount = [this](int* count) {
    *count = num_devices_;
    return kCudaSuccess;
  };
  on.DeviceGet = [](CUdevice* device, int ordinal) {
    *device = ordinal;
    return kCudaSuccess;
  };
  on.DeviceGetName = [](char* name, int capacity, CUdevice) {
    std::snprintf(name, capacity, "Scripted GPU");
    return kCudaSuccess;
  };
  on.DeviceGetPCIBusId = [](char* bus_id, int capacity, CUdevice device) {
    std::snprintf(bus_id, capacity, "0000:%02x:00.0", 0x41 + device);
    return kCudaSuccess;
  };
  on.DeviceGetAttribute = [this](int* value, int attribute, CUdevice) {
    switch (attribute) {
      case kCudaMultiprocessorCount:
        *value = 132;
        return kCudaSuccess;
      case kCudaComputeCapabilityMajor:
        *value = 9;
        return kCudaSuccess;
      case kCudaComputeCapabilityMinor:
        *value = 0;
        return kCudaSuccess;
      case kCudaUsesHostPageTables:
        *value = uses_host_pages;
        return kCudaSuccess;
      case kCudaMemoryPoolsSupported:
        *value = has_pools;
        return kCudaSuccess;
      default:
        return kCudaInvalidValue;
    }
  };
  on.DeviceTotalMem = [](size_t* bytes, CUdevice) {
    *bytes = 1000;
    return kCudaSuccess;
  };
  on.DeviceCanAccessPeer = [this](int* can_access, CUdevice, CUdevice) {
    *can_access = can_access_peer;
    return kCudaSuccess;
  };
}

void ScriptedDriver::SetContextHandlers() {
  on.DevicePrimaryCtxRetain = [](CUcontext* context, CUdevice device) {
    *context = ContextOf(device);
    return kCudaSuccess;
  };
  on.DevicePrimaryCtxGetState = [](CUdevice, unsigned*, int* active) {
    *active = 1;
    return kCudaSuccess;
  };
  on.CtxGetCurrent = [this](CUcontext* context) {
    *context = contexts.empty() ? nullptr : contexts.back();
    return kCudaSuccess;
  };
  on.CtxSetCurrent = [this](CUcontext context) {
    if (contexts.empty()) contexts.emplace_back();
    contexts.back() = context;
    return kCudaSuccess;
  };
  on.CtxPushCurrent = [this](CUcontext context) {
    contexts.push_back(context);
    return kCudaSuccess;
  };
  on.CtxPopCurrent = [this](CUcontext* context) {
    if (contexts.empty()) return kCudaInvalidContext;
    *context = contexts.back();
    contexts.pop_back();
    return kCudaSuccess;
  };
  on.CtxGetDevice = [this](CUdevice* device) {
    if (contexts.empty()) return kCudaInvalidContext;
    for (int i = 0; i < num_devices_; ++i) {
      // Also contexts that are not the primary ones.
      if ((reinterpret_cast<uintptr_t>(contexts.back()) & ~uintptr_t{15}) ==
          reinterpret_cast<uintptr_t>(ContextOf(i))) {
        *device = i;
        return kCudaSuccess;
      }
    }
    return kCudaInvalidContext;
  };
  on.CtxGetStreamPriorityRange = [](int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return kCudaSuccess;
  };
  on.CtxEnablePeerAccess = [](CUcontext, unsigned) { return kCudaSuccess; };
}

void ScriptedDriver::SetMemoryHandlers() {
  const auto allocate = [this](CUdeviceptr* data, size_t bytes) {
    *data = next_address_;
    next_address_ += (bytes + 511) / 256 * 256;
    memory[*data] = bytes;
    return kCudaSuccess;
  };
  on.MemPoolCreate = [](CUmemoryPool* pool, const CUmemPoolProps* properties) {
    *pool = reinterpret_cast<CUmemoryPool>(uintptr_t{0x9000} +
                                           16 * properties->location.id);
    return kCudaSuccess;
  };
  on.MemPoolSetAttribute = [](CUmemoryPool, int, void*) {
    return kCudaSuccess;
  };
  on.MemPoolGetAttribute = [](CUmemoryPool, int attribute, void* value) {
    const uint64_t number = attribute == kCudaPoolUsedCurrent ? 300 : 1000;
    std::memcpy(value, &number, sizeof(number));
    return kCudaSuccess;
  };
  on.MemPoolSetAccess = [](CUmemoryPool, const CUmemAccessDesc*, size_t) {
    return kCudaSuccess;
  };
  on.MemPoolTrimTo = [](CUmemoryPool, size_t) { return kCudaSuccess; };
  on.MemAllocFromPoolAsync = [this, allocate](CUdeviceptr* data, size_t bytes,
                                              CUmemoryPool, CUstream stream) {
    const CUresult result = allocate(data, bytes);
    if (capturing.count(stream) > 0) graphs.insert(*data);
    return result;
  };
  on.MemFreeAsync = [this](CUdeviceptr data, CUstream stream) {
    if (capturing.count(stream) > 0 && graphs.count(data) == 0) {
      return kCudaInvalidValue;
    }
    frees.emplace_back(data, stream);
    return Remove(memory, data);
  };
  on.MemAlloc = allocate;
  on.MemFree = [this](CUdeviceptr data) { return Remove(memory, data); };
  on.MemHostAlloc = [this](void** data, size_t bytes, unsigned) {
    *data = std::aligned_alloc(4096, bytes);
    pinned[*data] = bytes;
    return kCudaSuccess;
  };
  on.MemFreeHost = [this](void* data) {
    std::free(data);
    return Remove(pinned, data);
  };
  on.MemGetInfo = [](size_t* free_bytes, size_t* total) {
    *free_bytes = 100;
    *total = 1000;
    return kCudaSuccess;
  };
  on.PointerGetAttributes = [this](unsigned, int*, void** values,
                                   CUdeviceptr data) {
    int* const type = static_cast<int*>(values[0]);
    int* const ordinal = static_cast<int*>(values[1]);
    *type = 0;
    *ordinal = -2;
    auto above = memory.upper_bound(data);
    if (above != memory.begin() &&
        data < std::prev(above)->first + std::prev(above)->second) {
      *type = kCudaMemoryTypeDevice;
      *ordinal = 0;
    }
    for (const auto& [start, bytes] : pinned) {
      if (data - reinterpret_cast<uintptr_t>(start) < bytes) {
        *type = kCudaMemoryTypeHost;
        *ordinal = 0;
      }
    }
    return kCudaSuccess;
  };
}

// Handles hold the address, which is the same in all "processes".
void ScriptedDriver::SetIpcHandlers() {
  on.MemGetAddressRange = [this](CUdeviceptr* base, size_t* bytes,
                                 CUdeviceptr data) {
    for (const auto& map : {memory, opened}) {
      for (const auto& [start, size] : map) {
        if (data - start >= size) continue;
        *base = start;
        *bytes = size;
        return kCudaSuccess;
      }
    }
    return kCudaInvalidValue;
  };
  on.IpcGetMemHandle = [](CUipcMemHandle* handle, CUdeviceptr data) {
    std::memcpy(handle->reserved, &data, sizeof(data));
    return kCudaSuccess;
  };
  on.IpcOpenMemHandle = [this](CUdeviceptr* data, CUipcMemHandle handle,
                               unsigned) {
    std::memcpy(data, handle.reserved, sizeof(*data));
    if (memory.count(*data) == 0) return kCudaInvalidValue;
    opened[*data] = memory[*data];
    return kCudaSuccess;
  };
  on.IpcCloseMemHandle = [this](CUdeviceptr data) {
    return Remove(opened, data);
  };
}

void ScriptedDriver::SetStreamHandlers() {
  on.StreamCreateWithPriority = [this](CUstream* stream, unsigned, int) {
    *stream = reinterpret_cast<CUstream>(next_address_);
    next_address_ += 256;
    return kCudaSuccess;
  };
  on.StreamDestroy = [](CUstream) { return kCudaSuccess; };
  on.StreamSynchronize = [](CUstream) { return kCudaSuccess; };
  on.StreamIsCapturing = [this](CUstream stream, int* status) {
    *status = capturing.count(stream) > 0 ? 1 : 0;
    return kCudaSuccess;
  };
  on.ThreadExchangeStreamCaptureMode = [this](int* mode) {
    std::swap(*mode, capture_mode);
    return kCudaSuccess;
  };
  on.StreamWaitEvent = [](CUstream, CUevent, unsigned) { return kCudaSuccess; };
  on.EventCreate = [this](CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(next_address_);
    next_address_ += 256;
    return kCudaSuccess;
  };
  on.EventDestroy = [](CUevent) { return kCudaSuccess; };
  on.EventRecord = [](CUevent, CUstream) { return kCudaSuccess; };
  on.EventQuery = [](CUevent) { return kCudaSuccess; };
}

void ScriptedDriver::SetWorkHandlers() {
  on.MemcpyAsync = [](CUdeviceptr, CUdeviceptr, size_t, CUstream) {
    return kCudaSuccess;
  };
  on.MemcpyPeerAsync = [](CUdeviceptr, CUcontext, CUdeviceptr, CUcontext,
                          size_t, CUstream) { return kCudaSuccess; };
  on.MemsetD8Async = [](CUdeviceptr, unsigned char, size_t, CUstream) {
    return kCudaSuccess;
  };
  on.MemsetD16Async = [](CUdeviceptr, unsigned, size_t, CUstream) {
    return kCudaSuccess;
  };
  on.MemsetD32Async = [](CUdeviceptr, unsigned, size_t, CUstream) {
    return kCudaSuccess;
  };
  on.ModuleLoadData = [](CUmodule* module, const void*) {
    *module = reinterpret_cast<CUmodule>(uintptr_t{0xa000});
    return kCudaSuccess;
  };
  // Kernels are their names.
  on.ModuleGetFunction = [](CUfunction* function, CUmodule, const char* name) {
    *function = reinterpret_cast<CUfunction>(const_cast<char*>(name));
    return kCudaSuccess;
  };
  on.LaunchKernel = [this](CUfunction function, unsigned, unsigned, unsigned,
                           unsigned, unsigned, unsigned, unsigned, CUstream,
                           void**, void**) {
    kernels.emplace_back(reinterpret_cast<const char*>(function));
    return kCudaSuccess;
  };
}

}  // namespace sherd::internal
