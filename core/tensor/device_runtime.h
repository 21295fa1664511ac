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

// The seam between the host and whatever drives devices. Users create tensors
// on a device and call what takes tensors; what moves tensors between devices
// calls this. Implementers write a device plugin (backends/device_abi.h), which
// the loader adapts to this. Tests implement it directly.

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

// Names memory of this process to other processes of this host. Plain bytes.
struct DeviceMemoryHandle {
  std::array<uint64_t, 12> words = {};
};

// The devices of one type that this process may use, numbered from 0.
//
// Completion. What takes a stream is queued there and returns: OK says that it
// is queued. Memory that it uses stays valid until it has run. Nothing waits
// for a device unless its card says so.
//
// Errors. Of all functions:
//   kUnavailable         There is no driver, no device, or one that is broken;
//                        the message says what was looked for.
//   kOutOfRange          There is no device of that number.
//   kResourceExhausted   No memory of that device.
//   kFailedPrecondition  Something that ran on the device before failed, after
//                        which the vendor's library refuses everything.
//
// Threads. Safe; none changes the calling thread's current device, but for
// SetCurrentDevice.
class DeviceRuntime {
 public:
  // The runtime for a type of device, which the loader finds and whose Probe
  // says OK. Lives forever; the same one, or the same error, each time.
  //   kInvalidArgument     The CPU and meta need none; kInvalid has none.
  //   kFailedPrecondition  No loader is linked: names the missing dependency.
  //   kNotFound            No plugin, and what was searched.
  //   other                As Probe says.
  //
  // Cost. No lock and no allocation once it was found.
  static absl::StatusOr<DeviceRuntime*> For(DeviceType type);
  // The same if For has found it before, and null otherwise. Loads nothing.
  static DeviceRuntime* FindLoaded(DeviceType type);

  // Turns a type into a runtime, or says everything that was tried.
  using Loader =
      std::function<absl::StatusOr<std::unique_ptr<DeviceRuntime>>(DeviceType)>;
  // Installs the loader; the last one wins, and is asked anew for every type.
  static void SetLoader(Loader loader);

  // `device` with an index, which is there: without one it means the calling
  // thread's current device. The CPU and meta stay as they are.
  //   kOutOfRange          There is no such device; says which there are.
  //   kFailedPrecondition  The device was made from malformed text.
  //   other                As For says.
  static absl::StatusOr<Device> Resolve(const Device& device);

  // MemoryOf a resolved device; HeapAllocator() for the CPU.
  //   kInvalidArgument  meta has no memory.
  //   other             As Resolve says.
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

  // Memory of a device, aligned to 256 bytes. What Allocate returns may be used
  // by what is queued on the calling thread's current stream (device_stream.h)
  // from then on, and on streams that wait for it. Deallocate never waits: what
  // was queued before on that stream, and on those that UsedOn named, may still
  // use it. The allocator lives forever.
  //   kOutOfRange  There is no such device; says which there are.
  // Its Allocate:
  //   kResourceExhausted   Not that much, nor after what the pools keep was
  //                        given back: says how much is in use and free.
  //   kFailedPrecondition  The current stream is being captured.
  //
  // Graphs. What a captured graph uses has to live as long as the graph does:
  // UsedOn a stream that is being captured does nothing. Memory that is freed
  // meanwhile is taken back when the capture has ended.
  absl::StatusOr<Allocator*> MemoryOf(int device);
  // Host memory that the devices reach, and copy from and to without waiting,
  // aligned to 4096 bytes. Pooled; lives forever. Its device() is the CPU.
  // Memory that is freed is handed out again once what UsedOn named has run.
  Allocator* PinnedMemory();
  // Memory of a device that Export can hand to other processes of this host,
  // aligned to 256 bytes, for whatever stream. Pooled; lives forever. Memory
  // that is freed is handed out again once what UsedOn named has run; what
  // other processes do with it is for the caller to wait for.
  //   kOutOfRange  There is no such device.
  // Its Allocate:
  //   kUnimplemented  There is none.
  absl::StatusOr<Allocator*> SharedMemoryOf(int device);
  virtual absl::StatusOr<DeviceMemoryStatistics> MemoryStatistics(
      int device) = 0;
  // Gives what the pools keep unused back to the system.
  virtual absl::Status Trim() = 0;
  // Whose memory an address is: a device; the CPU for pinned memory; nothing
  // for any other.
  virtual absl::StatusOr<std::optional<Device>> Locate(const void* data) = 0;

  // A stream that does not wait for the default stream.
  virtual absl::StatusOr<DeviceStream> CreateStream(
      int device, bool high_priority = false) = 0;
  // What is queued still runs, and tensors that were created on it stay.
  void DestroyStream(const DeviceStream& stream);
  virtual absl::StatusOr<bool> IsCapturing(const DeviceStream& stream) = 0;

  // Events come from a pool.
  virtual absl::StatusOr<DeviceEvent> TakeEvent(int device) = 0;
  virtual void ReturnEvent(int device, DeviceEvent event) = 0;
  virtual absl::Status RecordEvent(DeviceEvent event,
                                   const DeviceStream& stream) = 0;
  // What is queued on `stream` after this runs after the place in `event`.
  virtual absl::Status WaitEvent(const DeviceStream& stream,
                                 DeviceEvent event) = 0;
  // Whether everything before that place has run. Never waits.
  virtual absl::StatusOr<bool> QueryEvent(DeviceEvent event) = 0;

  // Waits until all that was queued on `stream` has run.
  //   kDeadlineExceeded    It has not, in time.
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
  // out[i] = reduction of ins[0][i] …, as core/comm/reduction.h does it.
  // `reduction` is the number of a ReduceOp.
  virtual absl::Status Reduce(const DeviceStream& stream, DType dtype,
                              int reduction, void* out,
                              absl::Span<const void* const> ins, uint64_t count,
                              int divisor) = 0;

  // A handle of memory from SharedMemoryOf(device).
  //   kUnimplemented  Other processes cannot reach it.
  virtual absl::StatusOr<DeviceMemoryHandle> Export(int device,
                                                    const void* data,
                                                    size_t bytes) = 0;
  // Where it lies in this process, until as many calls of Close.
  //   kInvalidArgument  Nothing can be opened with the handle.
  virtual absl::StatusOr<void*> Import(int device,
                                       const DeviceMemoryHandle& handle) = 0;
  virtual void Close(int device, void* data) = 0;
  // Lets what is queued on `device` use the memory of `owner`, too; false if it
  // never can.
  virtual absl::StatusOr<bool> Reach(int device, int owner) = 0;

  // Names what the calling thread does until PopRange, for profilers.
  virtual void PushRange(const char* name) = 0;
  virtual void PopRange() = 0;

 protected:
  // What the allocators are made of, as backends/device_abi.h says.
  friend class internal::DeviceAllocator;
  friend class internal::LingeringAllocator;

  // Memory for what is queued on `stream` from now on; aligned to 256 bytes.
  virtual absl::StatusOr<void*> AllocateOn(const DeviceStream& stream,
                                           size_t bytes) = 0;
  // What was queued on `stream` before may still use it.
  virtual absl::Status DeallocateOn(const DeviceStream& stream, void* data,
                                    size_t bytes) = 0;
  // Aligned to 4096 bytes. Nothing that is queued uses what is given back.
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
