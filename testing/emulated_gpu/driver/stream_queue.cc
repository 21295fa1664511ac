#include "sherd/testing/emulated_gpu/driver/stream_queue.h"

#include <cstdio>
#include <mutex>

#include "sherd/backends/cuda/driver_api.h"
#include "sherd/testing/emulated_gpu/driver/driver.h"
#include "sherd/testing/emulated_gpu/memory/device_memory.h"

namespace sherd::testing {
namespace {

const Clock* ClockOf(const HostOrder& order) {
  return static_cast<const Clock*>(order.get());
}

}  // namespace

HostOrder OrderOfThisThread() {
  Driver& driver = Driver::Get();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  return std::make_shared<const Clock>(driver.HostClock());
}

int Queue(StreamHandle handle, QueuedOperation operation,
          const HostOrder& order) {
  Driver& driver = Driver::Get();
  StreamTask task = {.name = std::move(operation.name),
                     .accesses = std::move(operation.accesses),
                     .run = std::move(operation.run),
                     .prepare = std::move(operation.prepare)};
  std::unique_lock<std::mutex> lock(driver.mutex);
  StreamRef stream;
  if (const int result = driver.FindStream(handle, &stream); result != 0) {
    return result;
  }
  if (const int broken = driver.devices[stream->device]->broken; broken != 0) {
    return broken;
  }
  if (task.prepare != nullptr && stream->capture == nullptr) {
    lock.unlock();
    task.run = std::exchange(task.prepare, nullptr)();
    lock.lock();
  }
  return driver.Queue(*stream, std::move(task), ClockOf(order));
}

int OrderStreams(StreamHandle earlier, StreamHandle later) {
  Driver& driver = Driver::Get();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  StreamRef from;
  StreamRef to;
  if (const int result = driver.FindStream(earlier, &from); result != 0) {
    return result;
  }
  if (const int result = driver.FindStream(later, &to); result != 0) {
    return result;
  }
  Event event = {.device = from->device};
  if (const int result = driver.RecordEvent(event, *from); result != 0) {
    return result;
  }
  return driver.WaitEvent(*to, event);
}

int CurrentDevice() {
  const Device* const device = Driver::Get().CurrentDevice();
  return device == nullptr ? -1 : device->number;
}

int DeviceOfStream(StreamHandle handle) {
  Driver& driver = Driver::Get();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  StreamRef stream;
  return driver.FindStream(handle, &stream) == 0 ? stream->device : -1;
}

bool IsCapturing(StreamHandle handle) {
  Driver& driver = Driver::Get();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  StreamRef stream;
  return driver.FindStream(handle, &stream) == 0 && stream->capture != nullptr;
}

int DeviceError(int device) {
  Driver& driver = Driver::Get();
  if (device < 0 || device >= DeviceCount())
    return internal::kCudaInvalidDevice;
  return driver.devices[device]->broken;
}

int DeviceCount() { return static_cast<int>(Driver::Get().devices.size()); }

std::string BusId(int device) {
  char text[32];
  std::snprintf(text, sizeof(text), "0000:%02x:00.0",
                0x40 + Driver::Get().devices.at(device)->machine_number);
  return text;
}

void* HostView(const void* address) {
  return Driver::Get().memory().View(reinterpret_cast<uint64_t>(address));
}

std::optional<MemoryLocation> LocateMemory(const void* address) {
  Driver& driver = Driver::Get();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  const AllocationRef allocation =
      driver.memory().Find(reinterpret_cast<uint64_t>(address));
  if (allocation == nullptr || allocation->freed != nullptr) {
    return std::nullopt;
  }
  return MemoryLocation{allocation->kind, std::max(allocation->device, 0),
                        reinterpret_cast<const void*>(allocation->base),
                        allocation->bytes};
}

int AllocateDeviceMemory(uint64_t bytes, void** address) {
  Driver& driver = Driver::Get();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  Device* const device = driver.CurrentDevice();
  if (device == nullptr) return internal::kCudaInvalidContext;
  AllocationRef allocation;
  const int result = AllocateOnHost(*device, bytes, &allocation);
  if (result == 0) *address = reinterpret_cast<void*>(allocation->base);
  return result;
}

int FreeDeviceMemory(void* address) {
  return FreeSynchronously(reinterpret_cast<uint64_t>(address), "ncclMemFree",
                           MemoryLocation::Kind::kDevice);
}

}  // namespace sherd::testing
