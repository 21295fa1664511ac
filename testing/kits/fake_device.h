#ifndef SHERD_TESTING_KITS_FAKE_DEVICE_H_
#define SHERD_TESTING_KITS_FAKE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/device_runtime.h"

namespace sherd::testing {

// Devices "cuda:0" to "cuda:N-1" in host memory, for tests of code that uses
// DeviceRuntime.
//
// Lazy. Queued work runs only when something waits for it: QueryEvent runs the
// work that the event follows, and nothing else. So work that was not waited
// for has not happened, deterministically. Fresh memory is filled with kFresh,
// and work that runs after memory was freed finds kFreed in it, in the order of
// streams. Host memory that is not pinned is read when a copy is queued, and a
// copy to it is waited for. A new stream reuses the handle of a destroyed one,
// if there is one.
//
// Threads. Safe, and each thread has a current device.
class FakeDevice final : public DeviceRuntime {
 public:
  static constexpr uint8_t kFresh = 0xCD;
  static constexpr uint8_t kFreed = 0xDD;

  explicit FakeDevice(int devices, uint64_t bytes_each = uint64_t{1} << 30);
  ~FakeDevice() override;

  // Makes a new one the result of DeviceRuntime::For(kCuda); lives forever.
  static FakeDevice& Install(int devices,
                             uint64_t bytes_each = uint64_t{1} << 30);
  // Makes DeviceRuntime::For(kCuda) return this error.
  static void InstallError(absl::Status error);

  // Faults.

  // From now on every call that can fail returns this; OK ends it.
  void FailWith(absl::Status status);
  // From now on Copy on this device returns this.
  void FailCopiesOn(int device, absl::Status status);
  // The result of Probe.
  void SetProbe(absl::Status status);
  // Whether a stream is being captured: queued work never runs.
  void SetCapturing(const DeviceStream& stream, bool capturing);
  // Nothing runs on the stream from now on.
  void Stop(const DeviceStream& stream);

  // Observation.

  // The current bytes of a device at an address.
  std::string ReadNow(const void* data, size_t bytes);
  // The names of work that was queued, or that ran, since the last call, in
  // order: "copy", "copy_bytes", "fill", "allocate", "free", ….
  std::vector<std::string> TakeQueued();
  std::vector<std::string> TakeRun();
  // Bytes passed to CopyBytes since the last call.
  uint64_t TakeBytesCopied();
  int live_events();
  int live_streams();
  // Allocated blocks: of devices, and of pinned and shared memory.
  int live_blocks();
  int live_pooled_blocks();
  // Runs all queued work.
  void RunAll();

  DeviceType type() const override { return DeviceType::kCuda; }
  absl::string_view origin() const override { return "a fake"; }
  std::string library_version() const override { return "fake driver 1.0"; }
  absl::Status Probe() override;
  absl::StatusOr<int> DeviceCount() override;
  absl::StatusOr<DeviceProperties> Properties(int device) override;
  absl::StatusOr<int> CurrentDevice() override;
  absl::Status SetCurrentDevice(int device) override;
  absl::StatusOr<DeviceMemoryStatistics> MemoryStatistics(int device) override;
  absl::Status Trim() override;
  absl::StatusOr<std::optional<Device>> Locate(const void* data) override;
  absl::StatusOr<DeviceStream> CreateStream(int device,
                                            bool high_priority) override;
  absl::StatusOr<bool> IsCapturing(const DeviceStream& stream) override;
  absl::StatusOr<DeviceEvent> TakeEvent(int device) override;
  void ReturnEvent(int device, DeviceEvent event) override;
  absl::Status RecordEvent(DeviceEvent event,
                           const DeviceStream& stream) override;
  absl::Status WaitEvent(const DeviceStream& stream,
                         DeviceEvent event) override;
  absl::StatusOr<bool> QueryEvent(DeviceEvent event) override;
  absl::Status CopyBytes(const DeviceStream& stream, void* dst, const void* src,
                         size_t bytes) override;
  absl::Status Copy(const DeviceStream& stream,
                    absl::Span<const DeviceCopy> copies) override;
  absl::Status Fill(const DeviceStream& stream,
                    const DeviceFill& fill) override;
  // These three are kUnimplemented.
  absl::Status FillRandom(const DeviceStream& stream,
                          const DeviceRandom& random) override;
  absl::Status Reduce(const DeviceStream& stream, DType dtype, int reduction,
                      void* out, absl::Span<const void* const> ins,
                      uint64_t count, int divisor) override;
  absl::Status PoolRows(const DeviceStream& stream,
                        const DeviceRowPooling& pooling) override;
  // Handles of memory of this process.
  absl::StatusOr<DeviceMemoryHandle> Export(int device, const void* data,
                                            size_t bytes) override;
  absl::StatusOr<void*> Import(int device,
                               const DeviceMemoryHandle& handle) override;
  void Close(int device, void* data) override;
  absl::StatusOr<bool> Reach(int device, int owner) override;
  void PushRange(const char* name) override;
  void PopRange() override {}

 protected:
  absl::StatusOr<void*> AllocateOn(const DeviceStream& stream,
                                   size_t bytes) override;
  absl::Status DeallocateOn(const DeviceStream& stream, void* data,
                            size_t bytes) override;
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override;
  absl::Status DeallocatePinned(void* data, size_t bytes) override;
  absl::StatusOr<void*> AllocateShared(int device, size_t bytes) override;
  absl::Status DeallocateShared(int device, void* data, size_t bytes) override;
  void EndStream(const DeviceStream& stream) override;

 private:
  struct Operation {
    std::string name;
    std::function<void()> run;
  };
  // In order; `ran` of them have run.
  struct Queue {
    std::vector<Operation> operations;
    size_t ran = 0;
    bool capturing = false;
    bool stopped = false;
  };
  // A place in a queue.
  struct Event {
    Queue* queue = nullptr;
    size_t place = 0;
  };
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes = 0;
    // Of a pool without streams.
    bool pooled = false;
    // -1 for pinned memory.
    int device = -1;
    bool freed = false;
  };

  Queue& QueueOf(const DeviceStream& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enqueue(const DeviceStream& stream, std::string name,
               std::function<void()> run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns false if work before that place cannot run.
  bool RunUntil(Queue& queue, size_t place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<void*> NewBlock(size_t bytes, size_t alignment, int device)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Block* Find(const void* data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FreePooled(void* data);

  const int devices_;
  const uint64_t bytes_each_;
  absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  // Of Copy, by device.
  std::vector<absl::Status> copy_failures_ ABSL_GUARDED_BY(mutex_);
  absl::Status probe_ ABSL_GUARDED_BY(mutex_);
  // Keyed by device and handle; queues and events have stable addresses.
  std::map<std::pair<int, void*>, std::unique_ptr<Queue>> queues_
      ABSL_GUARDED_BY(mutex_);
  // Of destroyed streams, whose handles are reused.
  std::vector<std::unique_ptr<Queue>> ended_ ABSL_GUARDED_BY(mutex_);
  std::set<void*> streams_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Event>> events_ ABSL_GUARDED_BY(mutex_);
  std::vector<Event*> free_events_ ABSL_GUARDED_BY(mutex_);
  // By address.
  std::map<uintptr_t, Block> blocks_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> live_bytes_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_copied_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> queued_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> run_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_FAKE_DEVICE_H_
