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

// Points in streams after which a block of memory is no longer used.
class StreamUses {
 public:
  // Records the work queued on `stream` so far; nothing on a stream that is
  // being captured.
  void Add(DeviceRuntime& runtime, const DeviceStream& stream);
  // Makes `stream` wait for all points, and clears them.
  void OrderBefore(DeviceRuntime& runtime, const DeviceStream& stream);
  // Whether all points have been passed, or the device failed, after which no
  // work runs.
  bool HavePassed(DeviceRuntime& runtime) const;
  // Clears the points.
  void Clear(DeviceRuntime& runtime);
  // `stream` is destroyed: its points stay, and are not confused with those of
  // a later stream with the same handle.
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

  // Called before `stream`, of any device, is destroyed: binds memory allocated
  // on it to the default stream.
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
  // Gives back memory freed on streams that are no longer being captured.
  void GiveBackDeferred();

  DeviceRuntime& runtime_;
  const Device device_;
  const std::string name_;
  absl::Mutex mutex_;
  absl::flat_hash_map<void*, Block> blocks_ ABSL_GUARDED_BY(mutex_);
  std::vector<Freed> deferred_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_deferred_ = false;
};

// DeviceRuntime::PinnedMemory and SharedMemoryOf: memory of no stream. Memory
// that is freed while it is used lingers.
class LingeringAllocator final : public Allocator {
 public:
  // Pinned memory for the CPU, otherwise shared memory of the device.
  LingeringAllocator(DeviceRuntime& runtime, const Device& device);

  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override;
  void Deallocate(void* data, size_t bytes) override;
  absl::string_view name() const override { return name_; }
  Device device() const override { return device_; }
  void UsedOn(void* data, const DeviceStream& stream) override;

  // Called before `stream` is destroyed.
  void Leave(const DeviceStream& stream);

 private:
  struct Freed {
    void* data;
    size_t bytes;
    StreamUses uses;
  };

  void GiveBack(void* data, size_t bytes);
  // Gives back memory that was freed and is no longer used.
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
