#include "sherd/testing/emulated_gpu/memory/device_memory.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/backends/cuda/driver_api.h"

namespace sherd::testing {
namespace {

using internal::kCudaInvalidValue;
using internal::kCudaOutOfMemory;

// Whether `bytes` more fit, be it that pools give back what they keep.
bool HasRoom(Device& device, uint64_t bytes) {
  const auto fits = [&device, bytes] {
    const uint64_t used = UsedBytes(device);
    return used <= device.limit && bytes <= device.limit - used;
  };
  if (fits()) return true;
  for (const auto& pool : device.pools) pool->reserved = pool->used;
  return fits();
}

std::shared_ptr<MemoryPool> PoolOf(const Allocation& allocation) {
  for (const auto& pool : Driver::Get().devices[allocation.device]->pools) {
    if (pool->number == allocation.pool) return pool;
  }
  return nullptr;
}

void GiveBack(const Allocation& allocation) {
  // Host memory is of no device and no pool.
  if (allocation.kind != MemoryLocation::Kind::kDevice) return;
  if (const auto pool = PoolOf(allocation)) {
    pool->used -= allocation.bytes;
  } else if (allocation.pool == 0) {
    Driver::Get().devices[allocation.device]->used -= allocation.bytes;
  }
}

// Queues `run` as an operation that writes all of the allocation.
int QueueWrite(Stream& stream, const char* function, bool is_free,
               const AllocationRef& allocation) {
  Driver& driver = Driver::Get();
  StreamTask task;
  task.name = absl::StrCat(function, " of ", allocation->bytes, " bytes");
  task.accesses = {Writes(reinterpret_cast<const void*>(allocation->base),
                          allocation->bytes)};
  task.is_copy = true;
  const bool is_kept = !is_free || allocation->is_of_graph;
  task.run = [&driver, allocation, is_kept] {
    if (is_kept) {
      driver.memory().Fill(*allocation);
    } else {
      driver.memory().Release(*allocation);
    }
    return 0;
  };
  if (is_kept) return driver.Queue(stream, std::move(task), nullptr);
  if (const int result = driver.CheckImplicitCapture(stream); result != 0) {
    return result;
  }
  std::vector<StreamWorker::Place> after;
  const OperationRef free = driver.Begin(stream, task.name, nullptr, &after);
  std::function<void()> run =
      driver.Runner(free, stream.device, std::move(task), &after);
  allocation->freed = free;
  stream.worker->Push(std::move(after), std::move(run));
  return 0;
}

}  // namespace

uint64_t UsedBytes(const Device& device) {
  uint64_t used = device.used;
  for (const auto& pool : device.pools) {
    used += std::max(pool->reserved, pool->used);
  }
  return used;
}

void ReleaseUnused(Device& device) {
  for (const auto& pool : device.pools) {
    pool->reserved =
        std::max(pool->used, std::min(pool->reserved, pool->release_threshold));
  }
}

int AllocateOnHost(Device& device, uint64_t bytes, AllocationRef* allocation) {
  if (bytes == 0) return kCudaInvalidValue;
  if (!HasRoom(device, bytes)) return kCudaOutOfMemory;
  MemoryTable& memory = Driver::Get().memory();
  *allocation = memory.AddDevice(device.number, bytes);
  if (*allocation == nullptr) return kCudaOutOfMemory;
  memory.Fill(**allocation);
  device.used += bytes;
  return 0;
}

int FreeSynchronously(uint64_t address, const char* function,
                      MemoryLocation::Kind kind) {
  Driver& driver = Driver::Get();
  std::unique_lock<std::mutex> lock(driver.mutex);
  const AllocationRef allocation = driver.memory().Find(address);
  if (allocation == nullptr || allocation->base != address ||
      allocation->kind != kind) {
    return kCudaInvalidValue;
  }
  if (allocation->freed != nullptr) {
    ReportFinding(absl::StrCat(function, " of memory that was freed by ",
                               allocation->freed->name));
    return kCudaInvalidValue;
  }
  if (const int result = driver.CheckUnsafeCall(); result != 0) return result;
  Device* const current = driver.CurrentDevice();
  Device* const device = allocation->device >= 0
                             ? driver.devices[allocation->device].get()
                             : current;
  if (device != nullptr) driver.SynchronizeDevice(lock, *device);
  if (allocation->freed != nullptr) return kCudaInvalidValue;
  driver.FreeOnHost(*allocation, function);
  GiveBack(*allocation);
  return 0;
}

int AllocateOnStream(MemoryPool& pool, uint64_t bytes, Stream& stream,
                     AllocationRef* allocation) {
  Driver& driver = Driver::Get();
  Device& device = *driver.devices[pool.device];
  if (bytes == 0) return kCudaInvalidValue;
  const uint64_t kept = std::max(pool.reserved, pool.used) - pool.used;
  if (bytes > kept && !HasRoom(device, bytes - kept) &&
      !HasRoom(device, bytes)) {
    return kCudaOutOfMemory;
  }
  *allocation = driver.memory().AddDevice(pool.device, bytes);
  if (*allocation == nullptr) return kCudaOutOfMemory;
  Allocation& made = **allocation;
  made.pool = pool.number;
  made.is_of_graph = stream.capture != nullptr;
  pool.used += bytes;
  pool.reserved = std::max(pool.reserved, pool.used);
  return QueueWrite(stream, "cuMemAllocFromPoolAsync", /*is_free=*/false,
                    *allocation);
}

int FreeOnStream(uint64_t address, Stream& stream) {
  Driver& driver = Driver::Get();
  const AllocationRef allocation = driver.memory().Find(address);
  if (allocation == nullptr || allocation->base != address ||
      allocation->kind != MemoryLocation::Kind::kDevice) {
    return kCudaInvalidValue;
  }
  if (allocation->freed != nullptr) {
    ReportFinding(absl::StrCat("cuMemFreeAsync of memory that was freed by ",
                               allocation->freed->name));
    return kCudaInvalidValue;
  }
  // Memory that a graph uses at each launch must survive the first launch.
  if (stream.capture != nullptr && !allocation->is_of_graph) {
    stream.capture->is_valid = false;
    return kCudaInvalidValue;
  }
  const int result =
      QueueWrite(stream, "cuMemFreeAsync", /*is_free=*/true, allocation);
  if (result == 0 && !allocation->is_of_graph) GiveBack(*allocation);
  return result;
}

}  // namespace sherd::testing
