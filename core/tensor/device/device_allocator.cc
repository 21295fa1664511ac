#include "sherd/core/tensor/device/device_allocator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device_stream.h"

namespace sherd::internal {
namespace {

constexpr size_t kDeviceAlignment = 256;
constexpr size_t kPinnedAlignment = 4096;

absl::Status CheckAlignment(size_t alignment, size_t most,
                            absl::string_view name) {
  if (alignment <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("memory of ", name, " is aligned to ", most,
                   " bytes, asked for was ", alignment));
}

// For functions that cannot report. A failed device reports its error to the
// next caller.
void LogFailure(const absl::Status& status, absl::string_view what) {
  if (status.ok()) return;
  SHERD_LOG(kDebug) << what << ": " << status.ToString();
}

// On a default stream nothing can be queued while a stream that waits for it is
// captured.
bool IsCapturing(DeviceRuntime& runtime, const DeviceStream& stream) {
  const absl::StatusOr<bool> capturing = runtime.IsCapturing(stream);
  return capturing.ok() && *capturing;
}

}  // namespace

void StreamUses::Add(DeviceRuntime& runtime, const DeviceStream& stream) {
  if (IsCapturing(runtime, stream)) return;
  auto use = std::find_if(uses_.begin(), uses_.end(), [&](const Use& known) {
    return !known.has_ended && known.stream == stream;
  });
  if (use == uses_.end()) {
    const absl::StatusOr<DeviceEvent> event =
        runtime.TakeEvent(stream.device.index);
    LogFailure(event.status(), "an event for memory in use");
    if (!event.ok()) return;
    uses_.push_back({stream, *event});
    use = std::prev(uses_.end());
  }
  LogFailure(runtime.RecordEvent(use->event, stream), "memory in use");
}

void StreamUses::OrderBefore(DeviceRuntime& runtime,
                             const DeviceStream& stream) {
  for (const Use& use : uses_) {
    LogFailure(runtime.WaitEvent(stream, use.event), "memory in use");
  }
  Clear(runtime);
}

bool StreamUses::HavePassed(DeviceRuntime& runtime) const {
  return std::all_of(uses_.begin(), uses_.end(), [&](const Use& use) {
    const absl::StatusOr<bool> passed = runtime.QueryEvent(use.event);
    return !passed.ok() || *passed;
  });
}

void StreamUses::Clear(DeviceRuntime& runtime) {
  for (const Use& use : uses_) {
    runtime.ReturnEvent(use.stream.device.index, use.event);
  }
  uses_.clear();
}

void StreamUses::Leave(const DeviceStream& stream) {
  for (Use& use : uses_) {
    use.has_ended = use.has_ended || use.stream == stream;
  }
}

DeviceAllocator::DeviceAllocator(DeviceRuntime& runtime, const Device& device)
    : runtime_(runtime), device_(device), name_(device.ToString()) {}

absl::StatusOr<void*> DeviceAllocator::Allocate(size_t bytes,
                                                size_t alignment) {
  SHERD_RETURN_IF_ERROR(CheckAlignment(alignment, kDeviceAlignment, name_));
  const DeviceStream stream = CurrentStream(device_);
  if (IsCapturing(runtime_, stream)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "memory of ", name_,
        " cannot be allocated while the current stream is "
        "being captured into a graph; create tensors before the capture"));
  }
  if (has_deferred_.load(std::memory_order_relaxed)) GiveBackDeferred();
  SHERD_ASSIGN_OR_RETURN(void* const data, AllocateOn(stream, bytes));
  absl::MutexLock lock(&mutex_);
  blocks_[data].stream = stream.handle;
  return data;
}

absl::StatusOr<void*> DeviceAllocator::AllocateOn(const DeviceStream& stream,
                                                  size_t bytes) {
  absl::StatusOr<void*> data = runtime_.AllocateOn(stream, bytes);
  if (!absl::IsResourceExhausted(data.status())) return data;
  LogFailure(runtime_.Trim(), "memory that the pools keep");
  data = runtime_.AllocateOn(stream, bytes);
  if (!absl::IsResourceExhausted(data.status())) return data;
  return OutOfMemory(data.status(), bytes);
}

absl::Status DeviceAllocator::OutOfMemory(const absl::Status& status,
                                          size_t bytes) {
  std::string text = absl::StrCat("out of memory: ", name_, " cannot provide ",
                                  bytes, " bytes");
  if (const auto properties = runtime_.Properties(device_.index);
      properties.ok()) {
    absl::StrAppend(&text, "; ", properties->free_bytes, " of ",
                    properties->total_bytes, " are free");
  }
  if (const auto memory = runtime_.MemoryStatistics(device_.index);
      memory.ok()) {
    absl::StrAppend(&text, ", this process uses ", memory->live_bytes,
                    " and keeps ", memory->cached_bytes, " for reuse");
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      text, "; use smaller shards or more devices (", status.message(), ")"));
}

void DeviceAllocator::Deallocate(void* data, size_t bytes) {
  Freed freed = {data, bytes, {}};
  {
    absl::MutexLock lock(&mutex_);
    const auto it = blocks_.find(data);
    SHERD_CHECK(it != blocks_.end()) << "not memory of " << name_;
    freed.block = std::move(it->second);
    blocks_.erase(it);
    if (IsCapturing(runtime_, {device_, freed.block.stream})) {
      deferred_.push_back(std::move(freed));
      has_deferred_.store(true, std::memory_order_relaxed);
      return;
    }
  }
  GiveBack(std::move(freed));
}

void DeviceAllocator::GiveBack(Freed freed) {
  const DeviceStream stream = {device_, freed.block.stream};
  freed.block.uses.OrderBefore(runtime_, stream);
  LogFailure(runtime_.DeallocateOn(stream, freed.data, freed.bytes),
             "memory is lost");
}

void DeviceAllocator::GiveBackDeferred() {
  std::vector<Freed> ready;
  {
    absl::MutexLock lock(&mutex_);
    const auto end = std::partition(
        deferred_.begin(), deferred_.end(), [&](const Freed& freed) {
          return IsCapturing(runtime_, {device_, freed.block.stream});
        });
    ready.assign(std::make_move_iterator(end),
                 std::make_move_iterator(deferred_.end()));
    deferred_.erase(end, deferred_.end());
    has_deferred_.store(!deferred_.empty(), std::memory_order_relaxed);
  }
  for (Freed& freed : ready) GiveBack(std::move(freed));
}

void DeviceAllocator::UsedOn(void* data, const DeviceStream& stream) {
  absl::MutexLock lock(&mutex_);
  const auto it = blocks_.find(data);
  SHERD_CHECK(it != blocks_.end()) << "not memory of " << name_;
  Block& block = it->second;
  if (stream.device == device_ && stream.handle == block.stream) return;
  block.uses.Add(runtime_, stream);
}

void DeviceAllocator::Leave(const DeviceStream& stream) {
  absl::MutexLock lock(&mutex_);
  const auto leave = [&](Block& block) {
    if (stream.device == device_ && block.stream == stream.handle) {
      block.uses.Add(runtime_, stream);
      block.stream = nullptr;
    }
    block.uses.Leave(stream);
  };
  for (auto& [data, block] : blocks_) leave(block);
  for (Freed& freed : deferred_) leave(freed.block);
}

LingeringAllocator::LingeringAllocator(DeviceRuntime& runtime,
                                       const Device& device)
    : runtime_(runtime),
      device_(device),
      name_(device.is_cpu() ? "pinned" : device.ToString() + " shared") {}

absl::StatusOr<void*> LingeringAllocator::Allocate(size_t bytes,
                                                   size_t alignment) {
  SHERD_RETURN_IF_ERROR(CheckAlignment(
      alignment, device_.is_cpu() ? kPinnedAlignment : kDeviceAlignment,
      name_));
  GiveBackPassed();
  if (device_.is_cpu()) return runtime_.AllocatePinned(bytes);
  return runtime_.AllocateShared(device_.index, bytes);
}

void LingeringAllocator::Deallocate(void* data, size_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto it = uses_.find(data); it != uses_.end()) {
      freed_.push_back({data, bytes, std::move(it->second)});
      uses_.erase(it);
      return;
    }
  }
  GiveBack(data, bytes);
}

void LingeringAllocator::GiveBack(void* data, size_t bytes) {
  LogFailure(device_.is_cpu()
                 ? runtime_.DeallocatePinned(data, bytes)
                 : runtime_.DeallocateShared(device_.index, data, bytes),
             "memory is lost");
}

void LingeringAllocator::GiveBackPassed() {
  std::vector<Freed> passed;
  {
    absl::MutexLock lock(&mutex_);
    const auto end = std::partition(freed_.begin(), freed_.end(),
                                    [this](const Freed& freed) {
                                      return !freed.uses.HavePassed(runtime_);
                                    });
    passed.assign(std::make_move_iterator(end),
                  std::make_move_iterator(freed_.end()));
    freed_.erase(end, freed_.end());
  }
  for (Freed& freed : passed) {
    freed.uses.Clear(runtime_);
    GiveBack(freed.data, freed.bytes);
  }
}

void LingeringAllocator::UsedOn(void* data, const DeviceStream& stream) {
  absl::MutexLock lock(&mutex_);
  uses_[data].Add(runtime_, stream);
}

void LingeringAllocator::Leave(const DeviceStream& stream) {
  absl::MutexLock lock(&mutex_);
  for (auto& [data, uses] : uses_) uses.Leave(stream);
}

}  // namespace sherd::internal
