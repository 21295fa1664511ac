#include "sherd/core/tensor/device_runtime.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device/device_allocator.h"
#include "sherd/core/tensor/device_stream.h"

namespace sherd {
namespace {

constexpr size_t kNumDeviceTypes = 3;

// How long a wait stays awake. Then it naps for a part of what it took so far,
// within these bounds: it ends late by that part at most.
constexpr absl::Duration kAwake = absl::Microseconds(100);
constexpr int kNapPart = 16;
constexpr absl::Duration kShortestNap = absl::Microseconds(20);
constexpr absl::Duration kLongestNap = absl::Milliseconds(1);

// The runtimes found, by type of device. Never destroyed: storage may outlive
// static destructors.
class Registry {
 public:
  static Registry& Global() {
    static Registry& registry = *new Registry;
    return registry;
  }

  absl::StatusOr<DeviceRuntime*> Find(DeviceType type) {
    const size_t i = static_cast<size_t>(type);
    if (DeviceRuntime* const runtime = FindLoaded(type)) return runtime;
    absl::MutexLock lock(&mutex_);
    if (DeviceRuntime* const runtime = FindLoaded(type)) return runtime;
    if (!failures_[i].ok()) return failures_[i];
    absl::StatusOr<DeviceRuntime*> loaded = Load(type);
    if (loaded.ok()) {
      working_[i].store(*loaded, std::memory_order_release);
    } else {
      failures_[i] = loaded.status();
    }
    return loaded;
  }

  DeviceRuntime* FindLoaded(DeviceType type) {
    return working_[static_cast<size_t>(type)].load(std::memory_order_acquire);
  }

  void SetLoader(DeviceRuntime::Loader loader) {
    absl::MutexLock lock(&mutex_);
    loader_ = std::move(loader);
    for (auto& working : working_) working.store(nullptr);
    failures_.fill(absl::OkStatus());
  }

 private:
  absl::StatusOr<DeviceRuntime*> Load(DeviceType type)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!loader_) {
      return absl::FailedPreconditionError(absl::StrCat(
          "memory of ", Name(type),
          " needs a device plugin, and this program "
          "has no loader: add @sherd//backends:loader (or @sherd//:sherd) to "
          "its deps"));
    }
    SHERD_ASSIGN_OR_RETURN(std::unique_ptr<DeviceRuntime> runtime,
                           loader_(type));
    SHERD_RETURN_IF_ERROR(runtime->Probe());
    loaded_.push_back(std::move(runtime));
    return loaded_.back().get();
  }

  std::array<std::atomic<DeviceRuntime*>, kNumDeviceTypes> working_ = {};
  absl::Mutex mutex_;
  DeviceRuntime::Loader loader_ ABSL_GUARDED_BY(mutex_);
  std::array<absl::Status, kNumDeviceTypes> failures_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<DeviceRuntime>> loaded_ ABSL_GUARDED_BY(mutex_);
};

absl::Status NoSuchDevice(const Device& device, int count) {
  const std::string type(Name(device.type));
  const std::string there =
      count == 0   ? std::string("is none")
      : count == 1 ? absl::StrCat("is only ", type, ":0")
                   : absl::StrCat("are ", type, ":0 to ", type, ":", count - 1);
  return absl::OutOfRangeError(absl::StrCat(
      "there is no ", device.ToString(), ": in this process there ", there,
      "; choose one of them, or show the process more "
      "(for cuda: CUDA_VISIBLE_DEVICES)"));
}

}  // namespace

struct DeviceRuntime::Allocators {
  struct OfDevice {
    OfDevice(DeviceRuntime& runtime, const Device& device)
        : memory(runtime, device), shared(runtime, device) {}

    internal::DeviceAllocator memory;
    internal::LingeringAllocator shared;
  };

  explicit Allocators(DeviceRuntime& runtime) : pinned(runtime, Device()) {}

  // Null unless that device was requested.
  OfDevice* Of(int device) {
    absl::MutexLock lock(&mutex);
    const size_t i = static_cast<size_t>(device);
    return i < devices.size() ? devices[i].get() : nullptr;
  }

  void Leave(const DeviceStream& stream) {
    std::vector<OfDevice*> all;
    {
      absl::MutexLock lock(&mutex);
      for (const auto& device : devices) all.push_back(device.get());
    }
    for (OfDevice* const device : all) {
      device->memory.Leave(stream);
      device->shared.Leave(stream);
    }
    pinned.Leave(stream);
  }

  internal::LingeringAllocator pinned;
  absl::Mutex mutex;
  // By number, as far as they were requested.
  std::vector<std::unique_ptr<OfDevice>> devices ABSL_GUARDED_BY(mutex);
};

DeviceRuntime::DeviceRuntime()
    : allocators_(std::make_unique<Allocators>(*this)) {}

DeviceRuntime::~DeviceRuntime() = default;

absl::StatusOr<DeviceRuntime*> DeviceRuntime::For(DeviceType type) {
  if (type != DeviceType::kCuda) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no runtime for ", Name(type),
                     ": expected a device with "
                     "memory of its own, such as cuda"));
  }
  return Registry::Global().Find(type);
}

DeviceRuntime* DeviceRuntime::FindLoaded(DeviceType type) {
  return type == DeviceType::kCuda ? Registry::Global().FindLoaded(type)
                                   : nullptr;
}

void DeviceRuntime::SetLoader(Loader loader) {
  Registry::Global().SetLoader(std::move(loader));
}

absl::StatusOr<Device> DeviceRuntime::Resolve(const Device& device) {
  SHERD_RETURN_IF_ERROR(device.status());
  if (device.is_cpu() || device.is_meta()) return device;
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime, For(device.type));
  Device resolved = device;
  if (device.index < 0) {
    SHERD_ASSIGN_OR_RETURN(resolved.index, runtime->CurrentDevice());
  }
  // Also checks that the device exists.
  SHERD_RETURN_IF_ERROR(runtime->MemoryOf(resolved.index).status());
  return resolved;
}

absl::StatusOr<Allocator*> DeviceRuntime::AllocatorFor(const Device& device) {
  SHERD_RETURN_IF_ERROR(device.status());
  if (device.is_cpu()) return &HeapAllocator();
  if (device.is_meta()) {
    return absl::InvalidArgumentError("the device meta has no memory");
  }
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime, For(device.type));
  int index = device.index;
  if (index < 0) {
    SHERD_ASSIGN_OR_RETURN(index, runtime->CurrentDevice());
  }
  return runtime->MemoryOf(index);
}

absl::Status DeviceRuntime::CheckNumber(int device) {
  if (allocators_->Of(device) != nullptr) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(const int count, DeviceCount());
  if (device < 0 || device >= count) {
    return NoSuchDevice({type(), device}, count);
  }
  absl::MutexLock lock(&allocators_->mutex);
  auto& devices = allocators_->devices;
  for (int i = static_cast<int>(devices.size()); i <= device; ++i) {
    devices.push_back(
        std::make_unique<Allocators::OfDevice>(*this, Device{type(), i}));
  }
  return absl::OkStatus();
}

absl::StatusOr<Allocator*> DeviceRuntime::MemoryOf(int device) {
  SHERD_RETURN_IF_ERROR(CheckNumber(device));
  return &allocators_->Of(device)->memory;
}

absl::StatusOr<Allocator*> DeviceRuntime::SharedMemoryOf(int device) {
  SHERD_RETURN_IF_ERROR(CheckNumber(device));
  return &allocators_->Of(device)->shared;
}

Allocator* DeviceRuntime::PinnedMemory() { return &allocators_->pinned; }

void DeviceRuntime::DestroyStream(const DeviceStream& stream) {
  allocators_->Leave(stream);
  EndStream(stream);
}

absl::Status DeviceRuntime::AwaitEvent(int device, DeviceEvent event,
                                       Deadline deadline) {
  const auto begin = Deadline::Clock::now();
  while (true) {
    SHERD_ASSIGN_OR_RETURN(const bool passed, QueryEvent(event));
    if (passed) return absl::OkStatus();
    if (deadline.HasPassed()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the work queued on a stream of ", Device(type(), device).ToString(),
          " has not run in time"));
    }
    const absl::Duration taken =
        absl::FromChrono(Deadline::Clock::now() - begin);
    if (taken < kAwake) {
      sched_yield();
      continue;
    }
    const absl::Duration nap =
        std::clamp(taken / kNapPart, kShortestNap, kLongestNap);
    absl::SleepFor(std::min(nap, deadline.Remaining()));
  }
}

absl::Status DeviceRuntime::Synchronize(const DeviceStream& stream,
                                        Deadline deadline) {
  if (stream.handle != nullptr) {
    SHERD_ASSIGN_OR_RETURN(const bool capturing, IsCapturing(stream));
    if (capturing) {
      return absl::FailedPreconditionError(absl::StrCat(
          "a stream of ", stream.device.ToString(),
          " is being captured into a graph and runs nothing: a call that "
          "copies elements to the host cannot be part of a graph"));
    }
  }
  const int device = stream.device.index;
  SHERD_ASSIGN_OR_RETURN(const DeviceEvent event, TakeEvent(device));
  const absl::Cleanup return_event = [&] { ReturnEvent(device, event); };
  SHERD_RETURN_IF_ERROR(RecordEvent(event, stream));
  return AwaitEvent(device, event, deadline);
}

}  // namespace sherd
