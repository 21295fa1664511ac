#include "sherd/testing/kits/fake_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::testing {
namespace {

constexpr size_t kDeviceAlignment = 256;
constexpr size_t kPinnedAlignment = 4096;

thread_local int current_device = 0;

}  // namespace

FakeDevice::FakeDevice(int devices, uint64_t bytes_each)
    : devices_(devices),
      bytes_each_(bytes_each),
      copy_failures_(devices),
      live_bytes_(devices) {}

FakeDevice::~FakeDevice() = default;

FakeDevice& FakeDevice::Install(int devices, uint64_t bytes_each) {
  auto fake = std::make_unique<FakeDevice>(devices, bytes_each);
  FakeDevice& installed = *fake;
  auto shared =
      std::make_shared<std::unique_ptr<DeviceRuntime>>(std::move(fake));
  SetLoader(
      [shared](DeviceType) -> absl::StatusOr<std::unique_ptr<DeviceRuntime>> {
        if (*shared == nullptr) return absl::InternalError("loaded twice");
        return std::move(*shared);
      });
  current_device = 0;
  // The registry owns it from now on.
  SHERD_CHECK(For(DeviceType::kCuda).ok());
  return installed;
}

void FakeDevice::InstallError(absl::Status error) {
  SetLoader(
      [error](DeviceType) -> absl::StatusOr<std::unique_ptr<DeviceRuntime>> {
        return error;
      });
}

void FakeDevice::FailWith(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  failure_ = std::move(status);
}

void FakeDevice::FailCopiesOn(int device, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  copy_failures_[static_cast<size_t>(device)] = std::move(status);
}

void FakeDevice::SetProbe(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  probe_ = std::move(status);
}

void FakeDevice::SetCapturing(const DeviceStream& stream, bool capturing) {
  absl::MutexLock lock(&mutex_);
  QueueOf(stream).capturing = capturing;
}

void FakeDevice::Stop(const DeviceStream& stream) {
  absl::MutexLock lock(&mutex_);
  QueueOf(stream).stopped = true;
}

std::string FakeDevice::ReadNow(const void* data, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  return std::string(static_cast<const char*>(data), bytes);
}

std::vector<std::string> FakeDevice::TakeQueued() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(queued_, {});
}

std::vector<std::string> FakeDevice::TakeRun() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(run_, {});
}

uint64_t FakeDevice::TakeBytesCopied() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(bytes_copied_, 0);
}

int FakeDevice::live_events() {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(events_.size() - free_events_.size());
}

int FakeDevice::live_streams() {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(streams_.size());
}

int FakeDevice::live_blocks() {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(
      std::count_if(blocks_.begin(), blocks_.end(), [](const auto& entry) {
        return !entry.second.freed && !entry.second.pooled;
      }));
}

int FakeDevice::live_pooled_blocks() {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(
      std::count_if(blocks_.begin(), blocks_.end(), [](const auto& entry) {
        return !entry.second.freed && entry.second.pooled;
      }));
}

void FakeDevice::RunAll() {
  absl::MutexLock lock(&mutex_);
  for (auto& [key, queue] : queues_) {
    RunUntil(*queue, queue->operations.size());
  }
  for (auto& queue : ended_) RunUntil(*queue, queue->operations.size());
}

absl::Status FakeDevice::Probe() {
  absl::MutexLock lock(&mutex_);
  return probe_;
}

absl::StatusOr<int> FakeDevice::DeviceCount() {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  return devices_;
}

absl::StatusOr<DeviceProperties> FakeDevice::Properties(int device) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  return DeviceProperties{.name = "fake",
                          .bus_id = absl::StrCat("0000:", device, ":00.0"),
                          .total_bytes = bytes_each_,
                          .free_bytes = bytes_each_ - live_bytes_[device],
                          .compute_major = 9,
                          .compute_minor = 0,
                          .multiprocessors = 1};
}

absl::StatusOr<int> FakeDevice::CurrentDevice() { return current_device; }

absl::Status FakeDevice::SetCurrentDevice(int device) {
  current_device = device;
  return absl::OkStatus();
}

absl::StatusOr<DeviceMemoryStatistics> FakeDevice::MemoryStatistics(
    int device) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  return DeviceMemoryStatistics{live_bytes_[device], 0};
}

absl::Status FakeDevice::Trim() {
  absl::MutexLock lock(&mutex_);
  queued_.push_back("trim");
  return failure_;
}

absl::StatusOr<std::optional<Device>> FakeDevice::Locate(const void* data) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  const Block* const block = Find(data);
  if (block == nullptr || block->freed) return std::nullopt;
  if (block->device < 0) return Device();
  return Device{DeviceType::kCuda, block->device};
}

absl::StatusOr<DeviceStream> FakeDevice::CreateStream(int device, bool) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  uintptr_t handle = 0x1000;
  while (streams_.count(reinterpret_cast<void*>(handle)) == 1) ++handle;
  const DeviceStream stream = {{DeviceType::kCuda, device},
                               reinterpret_cast<void*>(handle)};
  streams_.insert(stream.handle);
  QueueOf(stream);
  return stream;
}

void FakeDevice::EndStream(const DeviceStream& stream) {
  absl::MutexLock lock(&mutex_);
  const auto queue = queues_.find({stream.device.index, stream.handle});
  SHERD_CHECK(queue != queues_.end() && streams_.erase(stream.handle) == 1)
      << "no such stream";
  ended_.push_back(std::move(queue->second));
  queues_.erase(queue);
}

absl::StatusOr<bool> FakeDevice::IsCapturing(const DeviceStream& stream) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  return QueueOf(stream).capturing;
}

absl::StatusOr<DeviceEvent> FakeDevice::TakeEvent(int) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  if (free_events_.empty()) {
    events_.push_back(std::make_unique<Event>());
    return events_.back().get();
  }
  Event* const event = free_events_.back();
  free_events_.pop_back();
  *event = {};
  return event;
}

void FakeDevice::ReturnEvent(int, DeviceEvent event) {
  absl::MutexLock lock(&mutex_);
  free_events_.push_back(static_cast<Event*>(event));
}

absl::Status FakeDevice::RecordEvent(DeviceEvent event,
                                     const DeviceStream& stream) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  Queue& queue = QueueOf(stream);
  *static_cast<Event*>(event) = {&queue, queue.operations.size()};
  return absl::OkStatus();
}

absl::Status FakeDevice::WaitEvent(const DeviceStream& stream,
                                   DeviceEvent event) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  const Event place = *static_cast<Event*>(event);
  if (place.queue == nullptr) return absl::OkStatus();
  Enqueue(stream, "wait", [this, place, queue = &QueueOf(stream)] {
    mutex_.AssertHeld();
    // Work after an operation that never runs does not run either.
    if (!RunUntil(*place.queue, place.place)) queue->stopped = true;
  });
  return absl::OkStatus();
}

absl::StatusOr<bool> FakeDevice::QueryEvent(DeviceEvent event) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  const Event& place = *static_cast<Event*>(event);
  return place.queue == nullptr || RunUntil(*place.queue, place.place);
}

absl::Status FakeDevice::CopyBytes(const DeviceStream& stream, void* dst,
                                   const void* src, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  bytes_copied_ += bytes;
  if (Find(src) == nullptr) {
    // Read now, written in the order of the stream.
    auto copy =
        std::make_shared<std::string>(static_cast<const char*>(src), bytes);
    Enqueue(stream, "copy_bytes",
            [dst, copy] { std::memcpy(dst, copy->data(), copy->size()); });
    return absl::OkStatus();
  }
  Enqueue(stream, "copy_bytes",
          [dst, src, bytes] { std::memcpy(dst, src, bytes); });
  if (Find(dst) == nullptr) {
    Queue& queue = QueueOf(stream);
    RunUntil(queue, queue.operations.size());
  }
  return absl::OkStatus();
}

absl::Status FakeDevice::Copy(const DeviceStream& stream,
                              absl::Span<const DeviceCopy> copies) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  SHERD_RETURN_IF_ERROR(
      copy_failures_[static_cast<size_t>(stream.device.index)]);
  struct Kept {
    DeviceCopy copy;
    Dims sizes, dst_strides, src_strides;
  };
  std::vector<Kept> kept;
  for (const DeviceCopy& copy : copies) {
    SHERD_CHECK(Find(copy.dst) != nullptr && Find(copy.src) != nullptr)
        << "a device cannot reach this";
    kept.push_back({copy, Dims(copy.sizes.begin(), copy.sizes.end()),
                    Dims(copy.dst_strides.begin(), copy.dst_strides.end()),
                    Dims(copy.src_strides.begin(), copy.src_strides.end())});
  }
  Enqueue(stream, "copy", [kept = std::move(kept)] {
    for (const Kept& box : kept) {
      StridedCopy(box.copy.dst, box.dst_strides, box.copy.src, box.src_strides,
                  box.sizes, box.copy.element_size);
    }
  });
  return absl::OkStatus();
}

absl::Status FakeDevice::Fill(const DeviceStream& stream,
                              const DeviceFill& fill) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  SHERD_CHECK(Find(fill.data) != nullptr) << "a device cannot reach this";
  Enqueue(stream, "fill",
          [data = fill.data, sizes = Dims(fill.sizes.begin(), fill.sizes.end()),
           strides = Dims(fill.strides.begin(), fill.strides.end()),
           value = std::string(static_cast<const char*>(fill.value),
                               fill.element_size)] {
            StridedCopy(data, strides, value.data(), Dims(sizes.size(), 0),
                        sizes, value.size());
          });
  return absl::OkStatus();
}

absl::Status FakeDevice::FillRandom(const DeviceStream&, const DeviceRandom&) {
  return absl::UnimplementedError("the fake device has no random numbers");
}

absl::Status FakeDevice::Reduce(const DeviceStream&, DType, int, void*,
                                absl::Span<const void* const>, uint64_t, int) {
  return absl::UnimplementedError("the fake device has no reductions");
}

absl::Status FakeDevice::PoolRows(const DeviceStream&,
                                  const DeviceRowPooling&) {
  return absl::UnimplementedError("the fake device pools no rows");
}

absl::StatusOr<DeviceMemoryHandle> FakeDevice::Export(int, const void* data,
                                                      size_t) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  DeviceMemoryHandle handle;
  handle.words[0] = reinterpret_cast<uintptr_t>(data);
  return handle;
}

absl::StatusOr<void*> FakeDevice::Import(int,
                                         const DeviceMemoryHandle& handle) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  void* const data = reinterpret_cast<void*>(handle.words[0]);
  if (Find(data) == nullptr) {
    return absl::InvalidArgumentError("the handle names no memory");
  }
  return data;
}

void FakeDevice::Close(int, void*) {}

absl::StatusOr<bool> FakeDevice::Reach(int, int) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  return true;
}

void FakeDevice::PushRange(const char* name) {
  absl::MutexLock lock(&mutex_);
  queued_.push_back(absl::StrCat("range ", name));
}

absl::StatusOr<void*> FakeDevice::AllocateOn(const DeviceStream& stream,
                                             size_t bytes) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  const int device = stream.device.index;
  if (bytes > bytes_each_ - live_bytes_[device]) {
    return absl::ResourceExhaustedError("fake out of memory");
  }
  SHERD_ASSIGN_OR_RETURN(void* const data,
                         NewBlock(bytes, kDeviceAlignment, device));
  live_bytes_[device] += bytes;
  queued_.push_back("allocate");
  return data;
}

absl::Status FakeDevice::DeallocateOn(const DeviceStream& stream, void* data,
                                      size_t bytes) {
  absl::MutexLock lock(&mutex_);
  Block* const block = Find(data);
  SHERD_CHECK(block != nullptr && !block->freed && block->bytes == bytes)
      << "not a block of this device";
  block->freed = true;
  live_bytes_[stream.device.index] -= bytes;
  Enqueue(stream, "free", [data, bytes] { std::memset(data, kFreed, bytes); });
  return absl::OkStatus();
}

absl::StatusOr<void*> FakeDevice::AllocatePinned(size_t bytes) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  SHERD_ASSIGN_OR_RETURN(void* const data,
                         NewBlock(bytes, kPinnedAlignment, -1));
  Find(data)->pooled = true;
  return data;
}

absl::Status FakeDevice::DeallocatePinned(void* data, size_t) {
  return FreePooled(data);
}

absl::StatusOr<void*> FakeDevice::AllocateShared(int device, size_t bytes) {
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(failure_);
  SHERD_ASSIGN_OR_RETURN(void* const data,
                         NewBlock(bytes, kDeviceAlignment, device));
  Find(data)->pooled = true;
  return data;
}

absl::Status FakeDevice::DeallocateShared(int, void* data, size_t) {
  return FreePooled(data);
}

absl::Status FakeDevice::FreePooled(void* data) {
  absl::MutexLock lock(&mutex_);
  Block* const block = Find(data);
  SHERD_CHECK(block != nullptr && !block->freed) << "not a block of the pool";
  block->freed = true;
  std::memset(data, kFreed, block->bytes);
  return absl::OkStatus();
}

FakeDevice::Queue& FakeDevice::QueueOf(const DeviceStream& stream) {
  SHERD_CHECK(stream.device.index >= 0 && stream.device.index < devices_)
      << "no such device: " << stream.device;
  SHERD_CHECK(stream.handle == nullptr || streams_.count(stream.handle) == 1)
      << "a stream is used that was destroyed";
  std::unique_ptr<Queue>& queue = queues_[{stream.device.index, stream.handle}];
  if (queue == nullptr) queue = std::make_unique<Queue>();
  return *queue;
}

void FakeDevice::Enqueue(const DeviceStream& stream, std::string name,
                         std::function<void()> run) {
  queued_.push_back(name);
  QueueOf(stream).operations.push_back({std::move(name), std::move(run)});
}

bool FakeDevice::RunUntil(Queue& queue, size_t place) {
  if (queue.capturing || queue.stopped) return queue.ran >= place;
  while (queue.ran < place) {
    const Operation operation = std::move(queue.operations[queue.ran++]);
    operation.run();
    if (queue.stopped) {
      --queue.ran;
      return false;
    }
    run_.push_back(operation.name);
  }
  return true;
}

absl::StatusOr<void*> FakeDevice::NewBlock(size_t bytes, size_t alignment,
                                           int device) {
  Block block;
  block.memory = std::make_unique<std::byte[]>(bytes + alignment);
  block.bytes = bytes;
  block.device = device;
  const uintptr_t address = RoundUp<uintptr_t>(
      reinterpret_cast<uintptr_t>(block.memory.get()), alignment);
  void* const data = reinterpret_cast<void*>(address);
  std::memset(data, kFresh, bytes);
  blocks_.emplace(address, std::move(block));
  return data;
}

FakeDevice::Block* FakeDevice::Find(const void* data) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return nullptr;
  --it;
  return address < it->first + it->second.bytes ? &it->second : nullptr;
}

}  // namespace sherd::testing
