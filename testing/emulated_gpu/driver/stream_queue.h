#ifndef SHERD_TESTING_EMULATED_GPU_DRIVER_STREAM_QUEUE_H_
#define SHERD_TESTING_EMULATED_GPU_DRIVER_STREAM_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace sherd::testing {

// The emulated GPUs as the emulated NCCL uses them: how it queues work on
// streams, and reads the driver's state. Results that are CUresult in the
// driver are ints here, 0 for success.
//
// Device addresses. The memory of a device is not mapped at its addresses: a
// program that accesses them on the host ends with SIGSEGV, as with a real GPU.
// Work on a stream accesses the bytes at HostView(address).

// Memory that an operation uses: `bytes` at `address`, repeated as a box of
// `repeats` (count, and distance in bytes). Device addresses, or pinned host
// memory; any other is a finding.
struct MemoryAccess {
  const void* address = nullptr;
  uint64_t bytes = 0;
  bool writes = false;
  std::vector<std::pair<uint64_t, int64_t>> repeats;
};

inline MemoryAccess Reads(const void* address, uint64_t bytes) {
  return {address, bytes, false, {}};
}
inline MemoryAccess Writes(const void* address, uint64_t bytes) {
  return {address, bytes, true, {}};
}

struct QueuedOperation {
  // For reports: "ncclAllReduce of 1024 float32".
  std::string name;
  // All memory of devices that `run` accesses in this process.
  std::vector<MemoryAccess> accesses;
  // Called on a thread of the stream once all preceding work of the stream has
  // run, never on the thread that queues; once for each launch if it was
  // captured into a graph. May wait for other processes: it delays only its
  // stream. Returns 0, or the CUresult that breaks the device from then on
  // (719: launch failed). Must end once its communicator is aborted. Destroyed
  // without a call if the device is broken by then.
  std::function<int()> run;
  // In place of `run`: called by the thread that queues, before Queue returns,
  // or that launches the graph, once per launch and in the order of the
  // captures. Returns the `run` of this launch.
  std::function<std::function<int()>()> prepare;
};

// The operations that a host thread knows to have happened; a value.
using HostOrder = std::shared_ptr<const void>;
HostOrder OrderOfThisThread();

// A program's stream handle (cudaStream_t): null and 1 are the default stream
// of the calling thread's current device, 2 is the thread's own.
using StreamHandle = void*;

// Queues the operation on `stream`, or captures it. Checks its accesses against
// all earlier ones: a finding aborts the process, or is counted (control.h).
//   400 (invalid handle)  No such stream.
//   201 (invalid context) No device is current, for the default stream.
//   other                 The error that broke the device; permanent.
// Acts on behalf of the thread that `order` belongs to.
int Queue(StreamHandle stream, QueuedOperation operation,
          const HostOrder& order = nullptr);

// Work queued on `later` from now on runs after the work that is now queued on
// `earlier`, as with an event; also during captures.
int OrderStreams(StreamHandle earlier, StreamHandle later);

// The device whose context is current in the calling thread, or -1.
int CurrentDevice();

// The device of a stream, or -1.
int DeviceOfStream(StreamHandle stream);

// Whether work queued on the stream becomes part of a graph.
bool IsCapturing(StreamHandle stream);

// The error that broke the device, or 0.
int DeviceError(int device);

int DeviceCount();

// Identifies a device: the same in every process of the host.
std::string BusId(int device);

// Where a thread of a stream accesses the bytes at a program's address: in the
// view of a device's memory, or the address itself for host memory.
void* HostView(const void* address);

struct MemoryLocation {
  enum class Kind { kDevice, kImported, kPinned };

  Kind kind = Kind::kDevice;
  // The device that was current when pinned memory was allocated.
  int device = 0;
  // The allocation around the address.
  const void* base = nullptr;
  uint64_t bytes = 0;
};

// Nothing for other host memory, and for freed memory.
std::optional<MemoryLocation> LocateMemory(const void* address);

// As cuMemAlloc and cuMemFree, on the current device: for ncclMemAlloc.
int AllocateDeviceMemory(uint64_t bytes, void** address);
int FreeDeviceMemory(void* address);

// Reports an invalid use, as the checker does: aborts the process, or counts
// the finding.
void ReportFinding(const std::string& text);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_DRIVER_STREAM_QUEUE_H_
