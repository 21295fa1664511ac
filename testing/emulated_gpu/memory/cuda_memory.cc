#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/testing/emulated_gpu/driver/driver.h"
#include "sherd/testing/emulated_gpu/graph_api.h"
#include "sherd/testing/emulated_gpu/memory/device_memory.h"

// Memory of devices and pinned memory, pools, and memory of other processes.

namespace sherd::testing {
namespace {

using internal::CudaFunctions;
using internal::CUipcMemHandle;
using internal::CUmemAccessDesc;
using internal::CUmemPoolProps;
using internal::kCudaInvalidContext;
using internal::kCudaInvalidDevice;
using internal::kCudaInvalidHandle;
using internal::kCudaInvalidValue;
using internal::kCudaOutOfMemory;

using Kind = MemoryLocation::Kind;

std::shared_ptr<MemoryPool> FindPool(CUmemoryPool handle) {
  return Driver::Get().pools.Find(handle);
}

bool IsDevice(const internal::CUmemLocation& location) {
  return location.type == internal::kCudaLocationDevice && location.id >= 0 &&
         location.id < DeviceCount();
}

// As cuPointerGetAttribute; does nothing for unknown attributes.
void SetAttribute(int attribute, const Allocation* allocation, void* value) {
  const bool is_known = allocation != nullptr;
  const bool is_pinned = is_known && allocation->kind == Kind::kPinned;
  switch (attribute) {
    case internal::kCudaPointerMemoryType: {
      const int type = !is_known   ? 0
                       : is_pinned ? internal::kCudaMemoryTypeHost
                                   : internal::kCudaMemoryTypeDevice;
      std::memcpy(value, &type, sizeof(type));
      break;
    }
    case internal::kCudaPointerDeviceOrdinal: {
      // Of imported memory: where it was opened, the number in this process.
      const int device = is_known ? std::max(allocation->device, 0) : -2;
      std::memcpy(value, &device, sizeof(device));
      break;
    }
    default:
      break;
  }
}

// The text of a pool's attribute that is set.
std::string PoolAttributeText(int attribute, const void* value) {
  if (value == nullptr) return "null";
  if (attribute != internal::kCudaPoolReleaseThreshold) {
    int number;
    std::memcpy(&number, value, sizeof(number));
    return absl::StrCat(number);
  }
  uint64_t bytes;
  std::memcpy(&bytes, value, sizeof(bytes));
  return absl::StrCat(bytes);
}

// How far from the start of a page a block is that is cut out of one.
constexpr uint64_t kMisaligned = 512;

}  // namespace

extern "C" {

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  return Enter("cuMemPoolCreate", Needs::kInit, [&]() -> int {
    if (pool == nullptr || properties == nullptr ||
        properties->allocType != internal::kCudaAllocationPinned ||
        !IsDevice(properties->location)) {
      return kCudaInvalidValue;
    }
    static uint64_t number = 0;
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    auto made = std::make_shared<MemoryPool>();
    made->device = properties->location.id;
    made->number = ++number;
    driver.devices[made->device]->pools.push_back(made);
    *pool = static_cast<CUmemoryPool>(driver.pools.Add(made));
    return 0;
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return Enter("cuMemPoolDestroy", Needs::kInit, [&]() -> int {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    const auto found = FindPool(pool);
    if (found == nullptr) return kCudaInvalidValue;
    found->release_threshold = 0;
    ReleaseUnused(*driver.devices[found->device]);
    driver.pools.Remove(pool);
    return 0;
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void* value) {
  const GpuCall call("cuMemPoolSetAttribute", [&] {
    return absl::StrCat(attribute, " = ", PoolAttributeText(attribute, value));
  });
  return Enter(call, Needs::kInit, [&]() -> int {
    const std::lock_guard<std::mutex> lock(Driver::Get().mutex);
    const auto found = FindPool(pool);
    if (found == nullptr || value == nullptr) return kCudaInvalidValue;
    if (attribute == internal::kCudaPoolReleaseThreshold) {
      std::memcpy(&found->release_threshold, value, sizeof(uint64_t));
    }
    return 0;
  });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void* value) {
  return Enter("cuMemPoolGetAttribute", Needs::kInit, [&]() -> int {
    const std::lock_guard<std::mutex> lock(Driver::Get().mutex);
    const auto found = FindPool(pool);
    if (found == nullptr || value == nullptr) return kCudaInvalidValue;
    uint64_t number;
    switch (attribute) {
      case internal::kCudaPoolReleaseThreshold:
        number = found->release_threshold;
        break;
      case internal::kCudaPoolReservedCurrent:
        number = found->reserved;
        break;
      case internal::kCudaPoolUsedCurrent:
        number = found->used;
        break;
      default:
        return kCudaInvalidValue;
    }
    std::memcpy(value, &number, sizeof(number));
    return 0;
  });
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* accesses,
                            size_t count) {
  const GpuCall call("cuMemPoolSetAccess", [&] {
    std::string text;
    for (size_t i = 0; accesses != nullptr && i < count; ++i) {
      absl::StrAppend(&text, i > 0 ? "; " : "", "device ",
                      accesses[i].location.id, ", flags ", accesses[i].flags);
    }
    return text;
  });
  return Enter(call, Needs::kInit, [&]() -> int {
    const std::lock_guard<std::mutex> lock(Driver::Get().mutex);
    const auto found = FindPool(pool);
    if (found == nullptr || (accesses == nullptr && count > 0)) {
      return kCudaInvalidValue;
    }
    for (size_t i = 0; i < count; ++i) {
      if (!IsDevice(accesses[i].location)) return kCudaInvalidDevice;
      const uint64_t bit = uint64_t{1} << accesses[i].location.id;
      if (accesses[i].flags == internal::kCudaAccessReadWrite) {
        found->reachable |= bit;
      } else {
        found->reachable &= ~bit;
      }
    }
    return 0;
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes) {
  const GpuCall call("cuMemPoolTrimTo",
                     [&] { return absl::StrCat(keep_bytes); });
  return Enter(call, Needs::kInit, [&]() -> int {
    const std::lock_guard<std::mutex> lock(Driver::Get().mutex);
    const auto found = FindPool(pool);
    if (found == nullptr) return kCudaInvalidValue;
    found->reserved = std::max<uint64_t>(
        found->used, std::min<uint64_t>(found->reserved, keep_bytes));
    return 0;
  });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* data, size_t bytes,
                                 CUmemoryPool pool, CUstream stream) {
  const GpuCall call("cuMemAllocFromPoolAsync", [&] {
    return absl::StrCat(bytes, ", ", AddressText(stream));
  });
  return Enter(call, Needs::kContext, [&]() -> int {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    const auto found = FindPool(pool);
    if (found == nullptr || data == nullptr) return kCudaInvalidValue;
    StreamRef on;
    if (const int result = driver.FindStream(stream, &on); result != 0) {
      return result;
    }
    AllocationRef allocation;
    const int result = AllocateOnStream(*found, bytes, *on, &allocation);
    if (result == 0) *data = allocation->base;
    return result;
  });
}

CUresult cuMemFreeAsync(CUdeviceptr data, CUstream stream) {
  const GpuCall call("cuMemFreeAsync", [&] {
    return absl::StrCat(AddressText(data), ", ", AddressText(stream));
  });
  return Enter(call, Needs::kContext, [&]() -> int {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    StreamRef on;
    if (const int result = driver.FindStream(stream, &on); result != 0) {
      return result;
    }
    return FreeOnStream(data, *on);
  });
}

CUresult cuMemAlloc_v2(CUdeviceptr* data, size_t bytes) {
  return Enter("cuMemAlloc", Needs::kContext, [&]() -> int {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    if (const int result = driver.CheckUnsafeCall(); result != 0) return result;
    AllocationRef allocation;
    const int result =
        AllocateOnHost(*driver.CurrentDevice(), bytes, &allocation);
    if (result == 0) *data = allocation->base;
    return result;
  });
}

CUresult cuMemFree_v2(CUdeviceptr data) {
  return Enter("cuMemFree", Needs::kContext, [&]() -> int {
    if (data == 0) return 0;
    return FreeSynchronously(data, "cuMemFree", Kind::kDevice);
  });
}

CUresult cuMemHostAlloc(void** data, size_t bytes, unsigned) {
  return Enter("cuMemHostAlloc", Needs::kContext, [&]() -> int {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    if (const int result = driver.CheckUnsafeCall(); result != 0) return result;
    if (data == nullptr || bytes == 0) return kCudaInvalidValue;
    const bool is_misaligned = ThisThread().answer == "misaligned";
    const AllocationRef allocation =
        driver.memory().AddPinned(bytes, is_misaligned ? kMisaligned : 0);
    if (allocation == nullptr) return kCudaOutOfMemory;
    *data = reinterpret_cast<void*>(allocation->base);
    return 0;
  });
}

CUresult cuMemFreeHost(void* data) {
  return Enter("cuMemFreeHost", Needs::kContext, [&] {
    return FreeSynchronously(reinterpret_cast<uint64_t>(data), "cuMemFreeHost",
                             Kind::kPinned);
  });
}

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  return Enter("cuMemGetInfo", Needs::kContext, [&] {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    const Device& device = *driver.CurrentDevice();
    *total = device.limit;
    *free_bytes = device.limit - std::min(device.limit, UsedBytes(device));
    return 0;
  });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes,
                                 CUdeviceptr data) {
  return Enter("cuMemGetAddressRange", Needs::kContext, [&]() -> int {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    const AllocationRef allocation = driver.memory().Find(data);
    if (allocation == nullptr || allocation->freed != nullptr) {
      return internal::kCudaNotFound;
    }
    if (base != nullptr) *base = allocation->base;
    if (bytes != nullptr) *bytes = allocation->bytes;
    return 0;
  });
}

CUresult cuPointerGetAttributes(unsigned count, int* attributes, void** values,
                                CUdeviceptr data) {
  return Enter("cuPointerGetAttributes", Needs::kContext, [&] {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    AllocationRef allocation = driver.memory().Find(data);
    if (allocation != nullptr && allocation->freed != nullptr) {
      allocation = nullptr;
    }
    for (unsigned i = 0; i < count; ++i) {
      SetAttribute(attributes[i], allocation.get(), values[i]);
    }
    return 0;
  });
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr data) {
  return Enter("cuIpcGetMemHandle", Needs::kContext, [&]() -> int {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    const AllocationRef allocation = driver.memory().Find(data);
    // Memory of pools cannot be opened elsewhere.
    if (allocation == nullptr || allocation->freed != nullptr ||
        allocation->kind != Kind::kDevice || allocation->pool != 0) {
      return kCudaInvalidValue;
    }
    if (!allocation->ticket) {
      allocation->ticket =
          driver.memory().space().Offer(allocation->device, allocation->base,
                                        allocation->bytes, &allocation->handle);
      if (!allocation->ticket) return kCudaOutOfMemory;
    }
    static_assert(sizeof(allocation->handle) == sizeof(*handle));
    std::memcpy(handle, &allocation->handle, sizeof(*handle));
    return 0;
  });
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* data, CUipcMemHandle handle,
                               unsigned flags) {
  return Enter("cuIpcOpenMemHandle", Needs::kContext, [&]() -> int {
    AddressSpace::Handle named;
    std::memcpy(named.words.data(), &handle, sizeof(handle));
    if (data == nullptr || flags != internal::kCudaIpcLazyEnablePeerAccess ||
        AddressSpace::BytesOf(named) == 0) {
      return kCudaInvalidValue;
    }
    if (AddressSpace::IsOfThisProcess(named) && ThisThread().answer != "own") {
      return kCudaInvalidContext;
    }
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    const AllocationRef allocation = driver.memory().AddImport(named);
    if (allocation == nullptr) return kCudaInvalidValue;
    if (allocation->opened == 1) {
      // The number that the exporter knows means nothing here.
      allocation->device = driver.CurrentDevice()->number;
    }
    *data = allocation->base;
    return 0;
  });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr data) {
  const GpuCall call("cuIpcCloseMemHandle", [&] { return AddressText(data); });
  return Enter(call, Needs::kContext, [&]() -> int {
    {
      Driver& driver = Driver::Get();
      const std::lock_guard<std::mutex> lock(driver.mutex);
      const AllocationRef allocation = driver.memory().Find(data);
      if (allocation == nullptr || allocation->base != data ||
          allocation->kind != Kind::kImported) {
        return kCudaInvalidValue;
      }
      if (allocation->opened > 1) {
        --allocation->opened;
        return 0;
      }
    }
    return FreeSynchronously(data, "cuIpcCloseMemHandle", Kind::kImported);
  });
}

}  // extern "C"

#define SHERD_CHECK(function, table, member) \
  static_assert(std::is_same_v<decltype(&function), decltype(table::member)>)
SHERD_CHECK(cuMemPoolCreate, CudaFunctions, MemPoolCreate);
SHERD_CHECK(cuMemPoolDestroy, TestCudaFunctions, MemPoolDestroy);
SHERD_CHECK(cuMemPoolSetAttribute, CudaFunctions, MemPoolSetAttribute);
SHERD_CHECK(cuMemPoolGetAttribute, CudaFunctions, MemPoolGetAttribute);
SHERD_CHECK(cuMemPoolSetAccess, CudaFunctions, MemPoolSetAccess);
SHERD_CHECK(cuMemPoolTrimTo, CudaFunctions, MemPoolTrimTo);
SHERD_CHECK(cuMemAllocFromPoolAsync, CudaFunctions, MemAllocFromPoolAsync);
SHERD_CHECK(cuMemFreeAsync, CudaFunctions, MemFreeAsync);
SHERD_CHECK(cuMemAlloc_v2, CudaFunctions, MemAlloc);
SHERD_CHECK(cuMemFree_v2, CudaFunctions, MemFree);
SHERD_CHECK(cuMemHostAlloc, CudaFunctions, MemHostAlloc);
SHERD_CHECK(cuMemFreeHost, CudaFunctions, MemFreeHost);
SHERD_CHECK(cuMemGetInfo_v2, CudaFunctions, MemGetInfo);
SHERD_CHECK(cuMemGetAddressRange_v2, CudaFunctions, MemGetAddressRange);
SHERD_CHECK(cuPointerGetAttributes, CudaFunctions, PointerGetAttributes);
SHERD_CHECK(cuIpcGetMemHandle, CudaFunctions, IpcGetMemHandle);
SHERD_CHECK(cuIpcOpenMemHandle_v2, CudaFunctions, IpcOpenMemHandle);
SHERD_CHECK(cuIpcCloseMemHandle, CudaFunctions, IpcCloseMemHandle);
#undef SHERD_CHECK

}  // namespace sherd::testing
