#ifndef SHERD_CORE_TENSOR_DEVICE_RUNTIME_H_
#define SHERD_CORE_TENSOR_DEVICE_RUNTIME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/storage.h"

namespace sherd {

namespace internal {
class DeviceAllocator;
class LingeringAllocator;
}  // namespace internal

// The interface between the host and the drivers of devices. Users create
// tensors on a device and call functions that take tensors; code that moves
// tensors between devices calls this. Implementers write a device plugin
// (backends/device_abi.h), which the loader adapts to this. Tests implement it
// directly.

// Marks a place in a stream.
using DeviceEvent = void*;

// One box of elements; see core/tensor/kernels/strided_copy.h. All memory can
// be reached from the device: its own, a peer's that was imported, or pinned.
struct DeviceCopy {
  void* dst = nullptr;
  absl::Span<const int64_t> dst_strides;
  const void* src = nullptr;
  absl::Span<const int64_t> src_strides;
  absl::Span<const int64_t> sizes;
  size_t element_size = 1;
};

// Every element of a box becomes `value`, of element_size bytes.
struct DeviceFill {
  void* data = nullptr;
  absl::Span<const int64_t> strides;
  absl::Span<const int64_t> sizes;
  size_t element_size = 1;
  const void* value = nullptr;
};

// Random numbers as core/tensor/random.h draws them.
struct DeviceRandom {
  enum class Distribution { kUniform = 0, kNormal = 1 };

  Distribution distribution = Distribution::kUniform;
  DType dtype = DType::kFloat32;
  // Low and high, or mean and deviation.
  double a = 0;
  double b = 1;
  // Where the stream of the generator begins.
  uint64_t seed = 0;
  uint64_t position = 0;
  void* data = nullptr;
  absl::Span<const int64_t> strides;
  absl::Span<const int64_t> sizes;
  absl::Span<const int64_t> global_sizes;
  absl::Span<const int64_t> offsets;
};

// Rows of a table, gathered and pooled: see sherd_pool_rows_v0 of
// backends/device_abi.h for the meaning and the order of computation.
struct DeviceRowPooling {
  enum class Mode { kSum = 0, kMean = 1, kMax = 2, kNone = 3 };

  Mode mode = Mode::kSum;
  DType table_dtype = DType::kFloat32;
  DType out_dtype = DType::kFloat32;
  void* out = nullptr;
  // Strides in bytes.
  int64_t out_stride = 0;
  const void* table = nullptr;
  int64_t row_stride = 0;
  uint64_t row_alignment = 1;
  int64_t columns = 0;
  int64_t bags = 0;
  // In memory that the device reaches; read when the work runs.
  const int64_t* ends = nullptr;
  const int64_t* rows = nullptr;
  const void* weights = nullptr;
  const int64_t* divisors = nullptr;
};

struct DeviceProperties {
  std::string name;
  // The same for one device in every process of a host.
  std::string bus_id;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
};

struct DeviceMemoryStatistics {
  // Handed out, and kept by the pool.
  uint64_t live_bytes = 0;
  uint64_t cached_bytes = 0;
};

// Identifies memory of this process to other processes of this host. Trivially
// copyable.
struct DeviceMemoryHandle {
  std::array<uint64_t, 12> words = {};
};

// The devices of one type that this process may use, numbered from 0.
//
// Completion. A function that takes a stream queues its work there and returns:
// OK means that it is queued. Memory that it uses must stay valid until it has
// run. A function waits for a device only where documented.
//
// Errors. Of all functions:
//   kUnavailable         There is no driver, no device, or a broken one; the
//                        message lists what was searched.
//   kOutOfRange          The device does not exist.
//   kResourceExhausted   The device has no memory left.
//   kFailedPrecondition  Earlier work on the device failed, after which the
//                        vendor's library refuses all calls.
//
// Threads. Safe; none changes the calling thread's current device, but for
// SetCurrentDevice.
class DeviceRuntime {
 public:
  // The runtime for a type of device, which the loader finds and whose Probe
  // returns OK. Lives forever; the same one, or the same error, each time.
  //   kInvalidArgument     The CPU and meta need none; kInvalid has none.
  //   kFailedPrecondition  No loader is linked; the message names the missing
  //                        dependency.
  //   kNotFound            There is no plugin; the message lists what was
  //                        searched.
  //   other                Errors of Probe.
  //
  // Cost. No lock and no allocation once it was found.
  static absl::StatusOr<DeviceRuntime*> For(DeviceType type);
  // As For, if it has found the runtime before, otherwise null. Loads nothing.
  static DeviceRuntime* FindLoaded(DeviceType type);

  // Turns a type into a runtime, or returns an error that lists what was tried.
  using Loader =
      std::function<absl::StatusOr<std::unique_ptr<DeviceRuntime>>(DeviceType)>;
  // Installs the loader; the last one wins, and is asked anew for every type.
  static void SetLoader(Loader loader);

  // `device` with an index, which is there: without one it means the calling
  // thread's current device. The CPU and meta stay as they are.
  //   kOutOfRange          The device does not exist; the message lists those
  //                        that do.
  //   kFailedPrecondition  The device was made from malformed text.
  //   other                Errors of For.
  static absl::StatusOr<Device> Resolve(const Device& device);

  // MemoryOf a resolved device; HeapAllocator() for the CPU.
  //   kInvalidArgument  meta has no memory.
  //   other             Errors of Resolve.
  static absl::StatusOr<Allocator*> AllocatorFor(const Device& device);

  DeviceRuntime();
  virtual ~DeviceRuntime();
  DeviceRuntime(const DeviceRuntime&) = delete;
  DeviceRuntime& operator=(const DeviceRuntime&) = delete;

  virtual DeviceType type() const = 0;
  // Path of the plugin, or "linked statically".
  virtual absl::string_view origin() const = 0;
  // Of the vendor's library, or empty.
  virtual std::string library_version() const = 0;
  // OK if there is a device that works. Initialises none.
  virtual absl::Status Probe() = 0;

  virtual absl::StatusOr<int> DeviceCount() = 0;
  virtual absl::StatusOr<DeviceProperties> Properties(int device) = 0;
  // The calling thread's.
  virtual absl::StatusOr<int> CurrentDevice() = 0;
  virtual absl::Status SetCurrentDevice(int device) = 0;

  // Memory of a device, aligned to 256 bytes. Work queued later on the calling
  // thread's current stream (device_stream.h), and on streams that wait for it,
  // may use the result of Allocate. Deallocate never waits: work queued before
  // on that stream, and on those that UsedOn named, may still use the memory.
  // The allocator lives forever.
  //   kOutOfRange  The device does not exist; the message lists those that do.
  // Its Allocate:
  //   kResourceExhausted   There is not that much memory, even after the pools
  //                        gave back theirs; the message has the amounts in use
  //                        and free.
  //   kFailedPrecondition  The current stream is being captured.
  //
  // Graphs. Memory that a captured graph uses must live as long as the graph:
  // UsedOn a stream that is being captured does nothing. Memory that is freed
  // meanwhile is reclaimed when the capture has ended.
  absl::StatusOr<Allocator*> MemoryOf(int device);
  // Host memory that the devices reach, and copy from and to without waiting,
  // aligned to 4096 bytes. Pooled; lives forever. Its device() is the CPU.
  // Freed memory is reused once the work that UsedOn named has run.
  Allocator* PinnedMemory();
  // Memory of a device that Export can hand to other processes of this host,
  // aligned to 256 bytes, for any stream. Pooled; lives forever. Freed memory
  // is reused once the work that UsedOn named has run; the caller must wait for
  // accesses of other processes.
  //   kOutOfRange  The device does not exist.
  // Its Allocate:
  //   kUnimplemented  The device has no such memory.
  absl::StatusOr<Allocator*> SharedMemoryOf(int device);
  virtual absl::StatusOr<DeviceMemoryStatistics> MemoryStatistics(
      int device) = 0;
  // Returns unused memory of the pools to the system.
  virtual absl::Status Trim() = 0;
  // The owner of the memory at an address: a device; the CPU for pinned memory;
  // nullopt for any other.
  virtual absl::StatusOr<std::optional<Device>> Locate(const void* data) = 0;

  // A stream that does not wait for the default stream.
  virtual absl::StatusOr<DeviceStream> CreateStream(
      int device, bool high_priority = false) = 0;
  // Queued work still runs, and tensors that were created on the stream stay
  // valid.
  void DestroyStream(const DeviceStream& stream);
  virtual absl::StatusOr<bool> IsCapturing(const DeviceStream& stream) = 0;

  // Events come from a pool.
  virtual absl::StatusOr<DeviceEvent> TakeEvent(int device) = 0;
  virtual void ReturnEvent(int device, DeviceEvent event) = 0;
  virtual absl::Status RecordEvent(DeviceEvent event,
                                   const DeviceStream& stream) = 0;
  // Work queued on `stream` after this runs after the point recorded in
  // `event`.
  virtual absl::Status WaitEvent(const DeviceStream& stream,
                                 DeviceEvent event) = 0;
  // Whether all work before that point has run. Never waits.
  virtual absl::StatusOr<bool> QueryEvent(DeviceEvent event) = 0;

  // Waits until all work before the point recorded in `event`, of `device`, has
  // run.
  //   kDeadlineExceeded  The work did not end in time.
  absl::Status AwaitEvent(int device, DeviceEvent event,
                          Deadline deadline = Deadline::Infinite());
  // Waits until all work queued on `stream` has run.
  //   kDeadlineExceeded    The work did not end in time.
  //   kFailedPrecondition  The stream is being captured: nothing runs.
  absl::Status Synchronize(const DeviceStream& stream,
                           Deadline deadline = Deadline::Infinite());

  // Work on a stream.

  // `bytes` between memory of any kind; host memory that is not pinned is
  // waited for.
  virtual absl::Status CopyBytes(const DeviceStream& stream, void* dst,
                                 const void* src, size_t bytes) = 0;
  // Boxes that do not overlap, in one launch.
  virtual absl::Status Copy(const DeviceStream& stream,
                            absl::Span<const DeviceCopy> copies) = 0;
  virtual absl::Status Fill(const DeviceStream& stream,
                            const DeviceFill& fill) = 0;
  virtual absl::Status FillRandom(const DeviceStream& stream,
                                  const DeviceRandom& random) = 0;
  // out[i] = reduction of ins[0][i] …, as in core/comm/reduction.h. `reduction`
  // is the number of a ReduceOp.
  virtual absl::Status Reduce(const DeviceStream& stream, DType dtype,
                              int reduction, void* out,
                              absl::Span<const void* const> ins, uint64_t count,
                              int divisor) = 0;
  //   kUnimplemented    The device does not do it; so, too, without bags, where
  //                     other devices do nothing.
  //   kInvalidArgument  A combination that sherd_pool_rows_v0 excludes.
  virtual absl::Status PoolRows(const DeviceStream& stream,
                                const DeviceRowPooling& pooling) = 0;

  // A handle of memory from SharedMemoryOf(device).
  //   kUnimplemented  Other processes cannot reach it.
  virtual absl::StatusOr<DeviceMemoryHandle> Export(int device,
                                                    const void* data,
                                                    size_t bytes) = 0;
  // Maps the memory and returns its address in this process, valid until as
  // many calls of Close.
  //   kInvalidArgument  Nothing can be opened with the handle.
  virtual absl::StatusOr<void*> Import(int device,
                                       const DeviceMemoryHandle& handle) = 0;
  virtual void Close(int device, void* data) = 0;
  // Lets work queued on `device` use the memory of `owner`, too; false if that
  // is not possible.
  virtual absl::StatusOr<bool> Reach(int device, int owner) = 0;

  // Names the calling thread's activity until PopRange, for profilers.
  virtual void PushRange(const char* name) = 0;
  virtual void PopRange() = 0;

 protected:
  // The primitives of the allocators, as in backends/device_abi.h.
  friend class internal::DeviceAllocator;
  friend class internal::LingeringAllocator;

  // Memory for work queued on `stream` from now on; aligned to 256 bytes.
  virtual absl::StatusOr<void*> AllocateOn(const DeviceStream& stream,
                                           size_t bytes) = 0;
  // Work queued on `stream` before may still use it.
  virtual absl::Status DeallocateOn(const DeviceStream& stream, void* data,
                                    size_t bytes) = 0;
  // Aligned to 4096 bytes. No queued work uses memory that is given back.
  virtual absl::StatusOr<void*> AllocatePinned(size_t bytes) = 0;
  virtual absl::Status DeallocatePinned(void* data, size_t bytes) = 0;
  // Aligned to 256 bytes; as for pinned memory.
  virtual absl::StatusOr<void*> AllocateShared(int device, size_t bytes) = 0;
  virtual absl::Status DeallocateShared(int device, void* data,
                                        size_t bytes) = 0;

  // DestroyStream, once no memory is bound to it any more.
  virtual void EndStream(const DeviceStream& stream) = 0;

 private:
  absl::Status CheckNumber(int device);

  struct Allocators;
  const std::unique_ptr<Allocators> allocators_;
};

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_DEVICE_RUNTIME_H_
