#include "sherd/backends/cuda/device_memory.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include "sherd/backends/cuda/cuda_error.h"
#include "sherd/backends/cuda/cuda_scope.h"
#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

void* ToPointer(CUdeviceptr data) { return reinterpret_cast<void*>(data); }

CUdeviceptr ToAddress(const void* data) {
  return reinterpret_cast<uintptr_t>(data);
}

// More than any machine has; the driver calls such sizes invalid.
constexpr uint64_t kMaxBytes = uint64_t{1} << 47;

// The driver of CUDA 11.5. Older ones are not trusted if a pool reuses memory
// that another stream freed, without an event between the two: NVIDIA's own
// libraries (libcu++, RMM) forbid that.
constexpr int kFirstSafeReuse = 11050;

}  // namespace

sherd_code DeviceMemory::Start(CUdevice handle, sherd_error_v0* error) {
  int has_pools = 0;
  if (const CUresult result = cuda_.DeviceGetAttribute(
          &has_pools, kCudaMemoryPoolsSupported, handle);
      result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuDeviceGetAttribute", result);
  }
  if (has_pools == 0) return SHERD_OK;

  CUmemPoolProps properties = {};
  properties.allocType = kCudaAllocationPinned;
  properties.handleTypes = kCudaHandleTypeNone;
  properties.location = {kCudaLocationDevice, handle};
  CUmemoryPool pool = nullptr;
  if (const CUresult result = cuda_.MemPoolCreate(&pool, &properties);
      result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuMemPoolCreate", result);
  }
  if (const CUresult result = SetUp(pool); result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuMemPoolSetAttribute", result);
  }
  pool_ = pool;
  return SHERD_OK;
}

CUresult DeviceMemory::SetUp(CUmemoryPool pool) {
  // By default each synchronisation would return all memory to the system.
  uint64_t threshold = UINT64_MAX;
  const CUresult result =
      cuda_.MemPoolSetAttribute(pool, kCudaPoolReleaseThreshold, &threshold);
  int version = 0;
  if (result != kCudaSuccess ||
      cuda_.DriverGetVersion(&version) != kCudaSuccess ||
      version >= kFirstSafeReuse) {
    return result;
  }
  int is_allowed = 0;
  return cuda_.MemPoolSetAttribute(pool, kCudaPoolReuseOpportunistic,
                                   &is_allowed);
}

CUresult DeviceMemory::TryAllocate(uint64_t bytes, CUstream stream,
                                   CUdeviceptr* data) {
  if (bytes > kMaxBytes) return kCudaOutOfMemory;
  if (pool_ != nullptr) {
    return cuda_.MemAllocFromPoolAsync(data, bytes, pool_, stream);
  }
  const RelaxedCaptureScope relaxed(cuda_);
  return cuda_.MemAlloc(data, bytes);
}

sherd_code DeviceMemory::Allocate(uint64_t bytes, CUstream stream, void** data,
                                  sherd_error_v0* error) {
  if (has_postponed_.load(std::memory_order_relaxed)) FreePostponed();
  const bool is_captured = IsCapturing(stream);
  if (is_captured && pool_ == nullptr) {
    return Fail(error, SHERD_UNSUPPORTED, -1,
                "a graph needs memory of its own, and this device has no pools "
                "to take it from");
  }
  CUdeviceptr address = 0;
  CUresult result = TryAllocate(bytes, stream, &address);
  if (result == kCudaOutOfMemory && ReleaseShared()) {
    result = TryAllocate(bytes, stream, &address);
  }
  // Until the host has seen that freed memory is no longer used, the pool
  // counts it as in use.
  if (result == kCudaOutOfMemory && bytes <= kMaxBytes && pool_ != nullptr &&
      !is_captured) {
    const RelaxedCaptureScope relaxed(cuda_);
    if (cuda_.StreamSynchronize(stream) == kCudaSuccess) {
      result = TryAllocate(bytes, stream, &address);
    }
  }
  if (result != kCudaSuccess) {
    return FailAllocation(
        pool_ != nullptr ? "cuMemAllocFromPoolAsync" : "cuMemAlloc", result,
        bytes, error);
  }
  if (pool_ == nullptr) direct_bytes_.fetch_add(bytes);
  if (is_captured) {
    std::lock_guard<std::mutex> lock(mutex_);
    graphs_.insert(address);
    has_graphs_.store(true, std::memory_order_relaxed);
  }
  *data = ToPointer(address);
  return SHERD_OK;
}

sherd_code DeviceMemory::FailAllocation(const char* function, CUresult result,
                                        uint64_t bytes, sherd_error_v0* error) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (cuda_.MemGetInfo(&free_bytes, &total_bytes) != kCudaSuccess) {
    free_bytes = 0;
    total_bytes = 0;
  }
  char detail[120];
  std::snprintf(detail, sizeof(detail),
                "for %" PRIu64 " bytes on device %d, where %zu of %zu are free",
                bytes, device_, free_bytes, total_bytes);
  return FailCuda(error, cuda_, function, result, detail);
}

bool DeviceMemory::IsCapturing(CUstream stream) {
  bool is_captured = false;
  return GetCapturing(cuda_, stream, &is_captured) == kCudaSuccess &&
         is_captured;
}

bool DeviceMemory::TakeGraphs(CUdeviceptr data) {
  if (!has_graphs_.load(std::memory_order_relaxed)) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  const bool is_graphs = graphs_.erase(data) == 1;
  has_graphs_.store(!graphs_.empty(), std::memory_order_relaxed);
  return is_graphs;
}

sherd_code DeviceMemory::Free(void* data, uint64_t bytes, CUstream stream,
                              sherd_error_v0* error) {
  if (has_postponed_.load(std::memory_order_relaxed)) FreePostponed();
  const CUdeviceptr address = ToAddress(data);
  if (!TakeGraphs(address) && IsCapturing(stream)) {
    std::lock_guard<std::mutex> lock(mutex_);
    postponed_.push_back({address, bytes, stream});
    has_postponed_.store(true, std::memory_order_relaxed);
    return SHERD_OK;
  }
  return FreeNow(address, bytes, stream, error);
}

sherd_code DeviceMemory::FreeNow(CUdeviceptr data, uint64_t bytes,
                                 CUstream stream, sherd_error_v0* error) {
  if (pool_ != nullptr) {
    const CUresult result = cuda_.MemFreeAsync(data, stream);
    if (result == kCudaSuccess) return SHERD_OK;
    return FailCuda(error, cuda_, "cuMemFreeAsync", result);
  }
  const RelaxedCaptureScope relaxed(cuda_);
  CUresult result = cuda_.StreamSynchronize(stream);
  if (result == kCudaSuccess) result = cuda_.MemFree(data);
  if (result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuMemFree", result);
  }
  direct_bytes_.fetch_sub(bytes);
  return SHERD_OK;
}

void DeviceMemory::FreePostponed() {
  std::vector<Postponed> ready;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto end = std::partition(
        postponed_.begin(), postponed_.end(),
        [&](const Postponed& free) { return IsCapturing(free.stream); });
    ready.assign(end, postponed_.end());
    postponed_.erase(end, postponed_.end());
    has_postponed_.store(!postponed_.empty(), std::memory_order_relaxed);
  }
  for (const Postponed& free : ready) {
    sherd_error_v0 ignored = {};
    FreeNow(free.data, free.bytes, free.stream, &ignored);
  }
}

void DeviceMemory::Leave(CUstream stream) {
  if (!has_postponed_.load(std::memory_order_relaxed)) return;
  FreePostponed();
  std::lock_guard<std::mutex> lock(mutex_);
  for (Postponed& free : postponed_) {
    if (free.stream == stream) free.stream = nullptr;
  }
}

sherd_code DeviceMemory::AllocateShared(uint64_t bytes, void** data,
                                        sherd_error_v0* error) {
  const uint64_t size = shared_.SizeFor(bytes);
  void* const cached = shared_.Take(size);
  if (cached != nullptr) {
    shared_bytes_.fetch_add(size);
    *data = cached;
    return SHERD_OK;
  }
  const RelaxedCaptureScope relaxed(cuda_);
  CUdeviceptr address = 0;
  CUresult result = kCudaOutOfMemory;
  if (size != 0) result = cuda_.MemAlloc(&address, size);
  if (size != 0 && result == kCudaOutOfMemory) {
    // Memory that the pool keeps is not available to this.
    sherd_error_v0 ignored = {};
    Trim(&ignored);
    result = cuda_.MemAlloc(&address, size);
  }
  if (result != kCudaSuccess) {
    return FailAllocation("cuMemAlloc", result, bytes, error);
  }
  shared_bytes_.fetch_add(size);
  *data = ToPointer(address);
  return SHERD_OK;
}

void DeviceMemory::FreeShared(void* data, uint64_t bytes) {
  const uint64_t size = shared_.SizeFor(bytes);
  shared_bytes_.fetch_sub(size);
  shared_.Put(data, size);
}

bool DeviceMemory::ReleaseShared() {
  const std::vector<void*> blocks = shared_.TakeAll();
  const RelaxedCaptureScope relaxed(cuda_);
  for (void* block : blocks) cuda_.MemFree(ToAddress(block));
  return !blocks.empty();
}

sherd_code DeviceMemory::Trim(sherd_error_v0* error) {
  ReleaseShared();
  if (pool_ == nullptr) return SHERD_OK;
  const RelaxedCaptureScope relaxed(cuda_);
  if (const CUresult result = cuda_.MemPoolTrimTo(pool_, 0);
      result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuMemPoolTrimTo", result);
  }
  return SHERD_OK;
}

sherd_code DeviceMemory::GetStatistics(uint64_t* live_bytes,
                                       uint64_t* cached_bytes,
                                       sherd_error_v0* error) {
  *live_bytes = direct_bytes_.load() + shared_bytes_.load();
  *cached_bytes = shared_.cached_bytes();
  if (pool_ == nullptr) return SHERD_OK;
  uint64_t used = 0;
  uint64_t reserved = 0;
  CUresult result =
      cuda_.MemPoolGetAttribute(pool_, kCudaPoolUsedCurrent, &used);
  if (result == kCudaSuccess) {
    result =
        cuda_.MemPoolGetAttribute(pool_, kCudaPoolReservedCurrent, &reserved);
  }
  if (result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuMemPoolGetAttribute", result);
  }
  *live_bytes += used;
  *cached_bytes += reserved > used ? reserved - used : 0;
  return SHERD_OK;
}

sherd_code DeviceMemory::LetAccess(CUdevice other, sherd_error_v0* error) {
  if (pool_ == nullptr) return SHERD_OK;
  CUmemAccessDesc access = {};
  access.location = {kCudaLocationDevice, other};
  access.flags = kCudaAccessReadWrite;
  if (const CUresult result = cuda_.MemPoolSetAccess(pool_, &access, 1);
      result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuMemPoolSetAccess", result);
  }
  return SHERD_OK;
}

}  // namespace sherd::internal
