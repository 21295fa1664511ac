#ifndef SHERD_CORE_TENSOR_DEVICE_DEVICE_ALLOCATOR_H_
#define SHERD_CORE_TENSOR_DEVICE_DEVICE_ALLOCATOR_H_

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::internal {

// Places in streams behind which a block of memory is not used any more.
class StreamUses {
 public:
  // Notes what was queued on `stream` so far; nothing on one that is being
  // captured.
  void Add(DeviceRuntime& runtime, const DeviceStream& stream);
  // `stream` waits for all of them; none is left.
  void OrderBefore(DeviceRuntime& runtime, const DeviceStream& stream);
  // Whether all have been passed, or the device failed, after which nothing
  // runs any more.
  bool HavePassed(DeviceRuntime& runtime) const;
  // Forgets them.
  void Clear(DeviceRuntime& runtime);
  // `stream` is destroyed: its places stay, and are not those of another stream
  // that has its handle one day.
  void Leave(const DeviceStream& stream);
  bool empty() const { return uses_.empty(); }

 private:
  struct Use {
    DeviceStream stream;
    DeviceEvent event;
    bool has_ended = false;
  };
  absl::InlinedVector<Use, 1> uses_;
};

// DeviceRuntime::MemoryOf.
class DeviceAllocator final : public Allocator {
 public:
  DeviceAllocator(DeviceRuntime& runtime, const Device& device);

  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override;
  void Deallocate(void* data, size_t bytes) override;
  absl::string_view name() const override { return name_; }
  Device device() const override { return device_; }
  void UsedOn(void* data, const DeviceStream& stream) override;

  // Before `stream`, of any device, is destroyed: binds what was allocated on
  // it to the default stream.
  void Leave(const DeviceStream& stream);

 private:
  struct Block {
    // Of the allocation.
    void* stream = nullptr;
    StreamUses uses;
  };
  struct Freed {
    void* data;
    size_t bytes;
    Block block;
  };

  absl::StatusOr<void*> AllocateOn(const DeviceStream& stream, size_t bytes);
  absl::Status OutOfMemory(const absl::Status& status, size_t bytes);
  void GiveBack(Freed freed);
  // What was freed on streams that are not being captured any more.
  void GiveBackDeferred();

  DeviceRuntime& runtime_;
  const Device device_;
  const std::string name_;
  absl::Mutex mutex_;
  absl::flat_hash_map<void*, Block> blocks_ ABSL_GUARDED_BY(mutex_);
  std::vector<Freed> deferred_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_deferred_ = false;
};

// DeviceRuntime::PinnedMemory and SharedMemoryOf: memory of no stream. What is
// freed while it is used lingers.
class LingeringAllocator final : public Allocator {
 public:
  // Pinned memory for the CPU, otherwise shared memory of the device.
  LingeringAllocator(DeviceRuntime& runtime, const Device& device);

  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override;
  void Deallocate(void* data, size_t bytes) override;
  absl::string_view name() const override { return name_; }
  Device device() const override { return device_; }
  void UsedOn(void* data, const DeviceStream& stream) override;

  // Before `stream` is destroyed.
  void Leave(const DeviceStream& stream);

 private:
  struct Freed {
    void* data;
    size_t bytes;
    StreamUses uses;
  };

  void GiveBack(void* data, size_t bytes);
  // What was freed and is not used any more.
  void GiveBackPassed();

  DeviceRuntime& runtime_;
  const Device device_;
  const std::string name_;
  absl::Mutex mutex_;
  absl::flat_hash_map<void*, StreamUses> uses_ ABSL_GUARDED_BY(mutex_);
  std::vector<Freed> freed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_TENSOR_DEVICE_DEVICE_ALLOCATOR_H_
