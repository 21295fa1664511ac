#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/testing/emulated_gpu/driver/driver.h"
#include "sherd/testing/emulated_gpu/graph_api.h"
#include "sherd/testing/emulated_gpu/memory/device_memory.h"

// The driver, its devices and their primary contexts.

namespace sherd::testing {
namespace {

using internal::CudaFunctions;
using internal::kCudaInvalidContext;
using internal::kCudaInvalidDevice;
using internal::kCudaInvalidValue;
using internal::kCudaNoDevice;

constexpr int kDriverVersion = 13000;

struct ErrorWords {
  int code;
  const char* name;
  const char* text;
};
constexpr ErrorWords kErrors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {35, "CUDA_ERROR_INSUFFICIENT_DRIVER",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking "
     "stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorWords* FindError(int code) {
  const auto* const found =
      std::find_if(std::begin(kErrors), std::end(kErrors),
                   [code](const ErrorWords& e) { return e.code == code; });
  return found == std::end(kErrors) ? nullptr : found;
}

CUcontext ContextOf(const Device& device) {
  return reinterpret_cast<CUcontext>(const_cast<Device*>(&device));
}

// Null if it is not a context.
Device* DeviceOf(CUcontext context) {
  Driver& driver = Driver::Get();
  for (const auto& device : driver.devices) {
    if (ContextOf(*device) == context) return device.get();
  }
  const std::lock_guard<std::mutex> lock(driver.mutex);
  const auto other = driver.other_contexts.Find(context);
  return other == nullptr ? nullptr : driver.devices[other->device].get();
}

Device* FindDevice(int number) {
  const auto& devices = Driver::Get().devices;
  if (number < 0 || number >= static_cast<int>(devices.size())) return nullptr;
  return devices[number].get();
}

int CopyText(const std::string& text, char* out, int capacity) {
  if (out == nullptr || capacity <= 0) return kCudaInvalidValue;
  std::snprintf(out, static_cast<size_t>(capacity), "%s", text.c_str());
  return 0;
}

int Attribute(int attribute) {
  switch (attribute) {
    case 10:  // Warp size.
      return 32;
    case internal::kCudaMultiprocessorCount:
      return 132;
    case 41:  // Unified addressing.
    case internal::kCudaMemoryPoolsSupported:
      return 1;
    case internal::kCudaComputeCapabilityMajor:
      return 9;
    default:
      return 0;
  }
}

// Called when the last reference is released: frees all of the device's memory
// and streams.
void DestroyContext(std::unique_lock<std::mutex>& lock, Device& device) {
  Driver& driver = Driver::Get();
  driver.SynchronizeDevice(lock, device);
  for (const StreamRef& stream : device.streams) stream->worker->Close();
  device.streams.clear();
  device.default_stream = nullptr;
  driver.memory().DropDevice(device.number,
                             driver.HostOperation("the context's end"));
  device.used = 0;
  device.pools.clear();
  device.peers = 0;
  device.broken = 0;
}

int SetCurrent(CUcontext context, bool push) {
  std::vector<ContextRef>& contexts = ThisThread().contexts;
  ContextRef current;
  if (context != nullptr) {
    const Device* const device = DeviceOf(context);
    if (device == nullptr) return kCudaInvalidContext;
    current = {context, device->number};
  }
  if (push || contexts.empty()) {
    contexts.push_back(current);
  } else {
    contexts.back() = current;
  }
  return 0;
}

CUcontext CurrentContext() {
  const std::vector<ContextRef>& contexts = ThisThread().contexts;
  return contexts.empty() ? nullptr
                          : static_cast<CUcontext>(contexts.back().handle);
}

}  // namespace

void ResetDriver() {
  Driver& driver = Driver::Get();
  std::unique_lock<std::mutex> lock(driver.mutex);
  for (const auto& capture : driver.captures) capture->is_valid = false;
  driver.captures.clear();
  // Work of one device may be in the memory of another.
  for (const auto& device : driver.devices) {
    if (device->retained > 0) driver.SynchronizeDevice(lock, *device);
  }
  for (const auto& device : driver.devices) {
    if (device->retained > 0) DestroyContext(lock, *device);
    device->retained = 0;
    device->limit = kDeviceBytes;
  }
  driver.memory().DropAll(driver.HostOperation("the driver's end"));
  driver.is_initialized = false;
  ThisThread().contexts.clear();
  ThisThread().own_streams.clear();
  ThisThread().capture_mode = 0;
}

extern "C" {

CUresult cuGetErrorName(CUresult error, const char** name) {
  return Enter("cuGetErrorName", Needs::kNothing, [&]() -> int {
    const ErrorWords* const words = FindError(error);
    *name = words == nullptr ? nullptr : words->name;
    return words == nullptr ? kCudaInvalidValue : 0;
  });
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  return Enter("cuGetErrorString", Needs::kNothing, [&]() -> int {
    const ErrorWords* const words = FindError(error);
    *text = words == nullptr ? nullptr : words->text;
    return words == nullptr ? kCudaInvalidValue : 0;
  });
}

CUresult cuDriverGetVersion(int* version) {
  return Enter("cuDriverGetVersion", Needs::kNothing, [&] {
    *version = Planned(kDriverVersion);
    return 0;
  });
}

CUresult cuInit(unsigned flags) {
  return Enter("cuInit", Needs::kNothing, [&]() -> int {
    if (flags != 0) return kCudaInvalidValue;
    if (DeviceCount() == 0) return kCudaNoDevice;
    Driver::Get().is_initialized = true;
    return 0;
  });
}

CUresult cuDeviceGetCount(int* count) {
  return Enter("cuDeviceGetCount", Needs::kInit, [&] {
    *count = Planned(DeviceCount());
    return 0;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return Enter("cuDeviceGet", Needs::kInit, [&]() -> int {
    if (FindDevice(ordinal) == nullptr) return kCudaInvalidDevice;
    *device = ordinal;
    return 0;
  });
}

CUresult cuDeviceGetName(char* name, int capacity, CUdevice device) {
  return Enter("cuDeviceGetName", Needs::kInit, [&]() -> int {
    if (FindDevice(device) == nullptr) return kCudaInvalidDevice;
    return CopyText("Emulated GPU", name, capacity);
  });
}

CUresult cuDeviceGetPCIBusId(char* bus_id, int capacity, CUdevice device) {
  return Enter("cuDeviceGetPCIBusId", Needs::kInit, [&]() -> int {
    if (FindDevice(device) == nullptr) return kCudaInvalidDevice;
    return CopyText(BusId(device), bus_id, capacity);
  });
}

CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  const GpuCall call("cuDeviceGetAttribute", [&] {
    return absl::StrCat(attribute, ", device ", device);
  });
  return Enter(call, Needs::kInit, [&]() -> int {
    if (FindDevice(device) == nullptr) return kCudaInvalidDevice;
    *value = Planned(Attribute(attribute));
    return 0;
  });
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  return Enter("cuDeviceTotalMem", Needs::kInit, [&]() -> int {
    const Device* const found = FindDevice(device);
    if (found == nullptr) return kCudaInvalidDevice;
    *bytes = found->limit;
    return 0;
  });
}

CUresult cuDeviceCanAccessPeer(int* can_access, CUdevice device,
                               CUdevice peer) {
  return Enter("cuDeviceCanAccessPeer", Needs::kInit, [&]() -> int {
    if (FindDevice(device) == nullptr || FindDevice(peer) == nullptr) {
      return kCudaInvalidDevice;
    }
    *can_access = Planned(device == peer ? 0 : 1);
    return 0;
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return Enter("cuDevicePrimaryCtxRetain", Needs::kInit, [&]() -> int {
    Device* const found = FindDevice(device);
    if (found == nullptr) return kCudaInvalidDevice;
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    if (found->retained++ == 0) {
      found->default_stream = driver.NewStream(*found, /*is_blocking=*/true);
      found->default_stream->is_default = true;
    }
    *context = ContextOf(*found);
    return 0;
  });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return Enter("cuDevicePrimaryCtxRelease", Needs::kInit, [&]() -> int {
    Device* const found = FindDevice(device);
    if (found == nullptr) return kCudaInvalidDevice;
    std::unique_lock<std::mutex> lock(Driver::Get().mutex);
    if (found->retained == 0) return kCudaInvalidContext;
    if (--found->retained == 0) DestroyContext(lock, *found);
    return 0;
  });
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags,
                                    int* active) {
  return Enter("cuDevicePrimaryCtxGetState", Needs::kInit, [&]() -> int {
    const Device* const found = FindDevice(device);
    if (found == nullptr) return kCudaInvalidDevice;
    const std::lock_guard<std::mutex> lock(Driver::Get().mutex);
    *flags = 0;
    *active = found->retained > 0 ? 1 : 0;
    return 0;
  });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  return Enter("cuCtxGetCurrent", Needs::kInit, [&] {
    *context = CurrentContext();
    return 0;
  });
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return Enter("cuCtxSetCurrent", Needs::kInit,
               [&] { return SetCurrent(context, /*push=*/false); });
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return Enter("cuCtxPushCurrent", Needs::kInit,
               [&] { return SetCurrent(context, /*push=*/true); });
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  return Enter("cuCtxPopCurrent", Needs::kInit, [&]() -> int {
    if (ThisThread().contexts.empty()) return kCudaInvalidContext;
    if (context != nullptr) *context = CurrentContext();
    ThisThread().contexts.pop_back();
    return 0;
  });
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned, CUdevice device) {
  return Enter("cuCtxCreate", Needs::kInit, [&]() -> int {
    if (FindDevice(device) == nullptr) return kCudaInvalidDevice;
    {
      Driver& driver = Driver::Get();
      const std::lock_guard<std::mutex> lock(driver.mutex);
      *context = static_cast<CUcontext>(driver.other_contexts.Add(
          std::make_shared<ContextRef>(ContextRef{nullptr, device})));
    }
    return SetCurrent(*context, /*push=*/true);
  });
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return Enter("cuCtxGetDevice", Needs::kContext, [&] {
    *device = Driver::Get().CurrentDevice()->number;
    return 0;
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return Enter("cuCtxGetStreamPriorityRange", Needs::kContext, [&] {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return 0;
  });
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  const GpuCall call("cuCtxEnablePeerAccess",
                     [&] { return AddressText(peer); });
  return Enter(call, Needs::kContext, [&]() -> int {
    const Device* const other = DeviceOf(peer);
    if (other == nullptr) return kCudaInvalidContext;
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    Device& device = *driver.CurrentDevice();
    if (flags != 0) return kCudaInvalidValue;
    if (other == &device) return internal::kCudaInvalidDevice;
    const uint64_t bit = uint64_t{1} << other->number;
    if ((device.peers & bit) != 0) {
      return internal::kCudaPeerAccessAlreadyEnabled;
    }
    device.peers |= bit;
    return 0;
  });
}

CUresult cuCtxSynchronize() {
  return Enter("cuCtxSynchronize", Needs::kContext, [&]() -> int {
    Driver& driver = Driver::Get();
    std::unique_lock<std::mutex> lock(driver.mutex);
    Device& device = *driver.CurrentDevice();
    if (const int result = driver.CheckUnsafeCall(); result != 0) return result;
    driver.SynchronizeDevice(lock, device);
    ReleaseUnused(device);
    return device.broken;
  });
}

}  // extern "C"

#define SHERD_CHECK(function, table, member) \
  static_assert(std::is_same_v<decltype(&function), decltype(table::member)>)
SHERD_CHECK(cuGetErrorName, CudaFunctions, GetErrorName);
SHERD_CHECK(cuGetErrorString, CudaFunctions, GetErrorString);
SHERD_CHECK(cuDriverGetVersion, CudaFunctions, DriverGetVersion);
SHERD_CHECK(cuInit, CudaFunctions, Init);
SHERD_CHECK(cuDeviceGetCount, CudaFunctions, DeviceGetCount);
SHERD_CHECK(cuDeviceGet, CudaFunctions, DeviceGet);
SHERD_CHECK(cuDeviceGetName, CudaFunctions, DeviceGetName);
SHERD_CHECK(cuDeviceGetPCIBusId, CudaFunctions, DeviceGetPCIBusId);
SHERD_CHECK(cuDeviceGetAttribute, CudaFunctions, DeviceGetAttribute);
SHERD_CHECK(cuDeviceTotalMem_v2, CudaFunctions, DeviceTotalMem);
SHERD_CHECK(cuDeviceCanAccessPeer, CudaFunctions, DeviceCanAccessPeer);
SHERD_CHECK(cuDevicePrimaryCtxRetain, CudaFunctions, DevicePrimaryCtxRetain);
SHERD_CHECK(cuDevicePrimaryCtxGetState, CudaFunctions,
            DevicePrimaryCtxGetState);
SHERD_CHECK(cuDevicePrimaryCtxRelease_v2, TestCudaFunctions,
            DevicePrimaryCtxRelease);
SHERD_CHECK(cuCtxGetCurrent, CudaFunctions, CtxGetCurrent);
SHERD_CHECK(cuCtxSetCurrent, CudaFunctions, CtxSetCurrent);
SHERD_CHECK(cuCtxPushCurrent_v2, CudaFunctions, CtxPushCurrent);
SHERD_CHECK(cuCtxPopCurrent_v2, CudaFunctions, CtxPopCurrent);
SHERD_CHECK(cuCtxCreate_v2, TestCudaFunctions, CtxCreate);
SHERD_CHECK(cuCtxGetDevice, CudaFunctions, CtxGetDevice);
SHERD_CHECK(cuCtxGetStreamPriorityRange, CudaFunctions,
            CtxGetStreamPriorityRange);
SHERD_CHECK(cuCtxEnablePeerAccess, CudaFunctions, CtxEnablePeerAccess);
SHERD_CHECK(cuCtxSynchronize, TestCudaFunctions, CtxSynchronize);
#undef SHERD_CHECK

}  // namespace sherd::testing
