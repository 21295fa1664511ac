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

// The emulated GPUs as the emulated NCCL sees them: how it queues work on
// streams, and learns what only the driver knows. Results that are CUresult in
// the driver's words are ints here, 0 for success.
//
// Device addresses. The memory of a device is not mapped where its addresses
// are: a program that touches them on the host ends with SIGSEGV, as with a
// real GPU. What runs on a stream reaches the bytes at HostView(address).

// Memory that an operation uses: `bytes` at `address`, repeated as a box of
// `repeats` (how often, and how many bytes further each time). Device
// addresses, or pinned host memory; any other is a finding.
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
  // All memory of this process that `run` touches on devices.
  std::vector<MemoryAccess> accesses;
  // Called on a thread of the stream when all that the stream waits for has
  // run, never on the thread that queues; once for each launch where it was
  // captured into a graph. May wait for other processes: it holds up its stream
  // alone. Returns 0, or the CUresult that breaks the device from then on
  // (719: launch failed). Must come to an end once its communicator is aborted.
  // Destroyed without a call where the device is broken by then.
  std::function<int()> run;
  // In place of `run`: called by the thread that queues, before Queue returns,
  // or that launches the graph, once per launch and in the order in which
  // things were captured. Returns what `run` would be, for this launch alone.
  std::function<std::function<int()>()> prepare;
};

// What a host thread knows to have happened; a value.
using HostOrder = std::shared_ptr<const void>;
HostOrder OrderOfThisThread();

// A stream handle as the program has it (cudaStream_t): null and 1 are the
// default stream of the calling thread's current device, 2 the thread's own.
using StreamHandle = void*;

// Queues on `stream`, or captures. Checks the accesses against all that was
// queued before: a finding aborts the process, or is counted (control.h).
//   400 (invalid handle)  No such stream.
//   201 (invalid context) No device is current, for the default stream.
//   other                 What broke the device, for ever after.
// On behalf of another thread where `order` is that thread's.
int Queue(StreamHandle stream, QueuedOperation operation,
          const HostOrder& order = nullptr);

// What is queued on `later` from now on runs after what is queued on `earlier`
// now, as if by an event; also while they capture.
int OrderStreams(StreamHandle earlier, StreamHandle later);

// The device whose context is current in the calling thread, or -1.
int CurrentDevice();

// The device of a stream, or -1.
int DeviceOfStream(StreamHandle stream);

// Whether what is queued on the stream becomes part of a graph.
bool IsCapturing(StreamHandle stream);

// What broke the device, or 0.
int DeviceError(int device);

int DeviceCount();

// The same for a device in every process of the host.
std::string BusId(int device);

// Where a thread of a stream reads and writes the bytes at an address that the
// program passed: in the view of a device's memory, or the address itself
// where it is host memory.
void* HostView(const void* address);

struct MemoryLocation {
  enum class Kind { kDevice, kImported, kPinned };

  Kind kind = Kind::kDevice;
  // Of pinned memory: the one that was current.
  int device = 0;
  // The allocation around the address.
  const void* base = nullptr;
  uint64_t bytes = 0;
};

// Nothing for other host memory, and for what was freed.
std::optional<MemoryLocation> LocateMemory(const void* address);

// As cuMemAlloc and cuMemFree, on the current device: for ncclMemAlloc.
int AllocateDeviceMemory(uint64_t bytes, void** address);
int FreeDeviceMemory(void* address);

// Reports a use that is wrong, as the checker does: aborts the process, or is
// counted.
void ReportFinding(const std::string& text);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_DRIVER_STREAM_QUEUE_H_
