#ifndef SHERD_TESTING_EMULATED_GPU_DRIVER_DRIVER_H_
#define SHERD_TESTING_EMULATED_GPU_DRIVER_DRIVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "sherd/testing/emulated_gpu/driver/clock.h"
#include "sherd/testing/emulated_gpu/driver/stream_queue.h"
#include "sherd/testing/emulated_gpu/driver/stream_worker.h"
#include "sherd/testing/emulated_gpu/memory/access_history.h"
#include "sherd/testing/emulated_gpu/memory/memory_table.h"
#include "sherd/testing/emulated_gpu/plan/faults.h"

namespace sherd::testing {

// Work that is queued on a stream, or captured.
struct StreamTask {
  std::string name;
  std::vector<MemoryAccess> accesses;
  // In place of `accesses`, if they depend on bytes on the device: called
  // before `run`, by the thread that runs.
  std::function<std::vector<MemoryAccess>()> late_accesses;
  std::function<int()> run;
  // As in QueuedOperation.
  std::function<std::function<int()>()> prepare;
  // The operation may use memory of any device, otherwise only memory that the
  // stream's device reaches.
  bool is_copy = false;
};

struct GraphNode {
  StreamTask task;
  // Nodes of one lane are ordered.
  size_t lane = 0;
  // The nodes that precede this one, by number.
  std::vector<size_t> after;
};

struct Stream;

// A capture, from its beginning to its end, of one or several streams.
struct Capture {
  int mode = 0;
  std::thread::id owner;
  bool is_valid = true;
  Stream* origin = nullptr;
  std::vector<std::shared_ptr<Stream>> members;
  std::vector<GraphNode> nodes;
};

struct Stream {
  int device = 0;
  // Its number on its device.
  int number = 0;
  bool is_default = false;
  // Whether it synchronizes with the default stream.
  bool is_blocking = true;
  // The program has destroyed it; queued work still counts for waits for the
  // device.
  bool is_destroyed = false;
  size_t lane = 0;
  // Position in the lane before the stream's first operation.
  uint64_t lane_start = 0;
  uint64_t queued = 0;
  Clock clock;
  std::shared_ptr<StreamWorker> worker;

  std::shared_ptr<Capture> capture;
  size_t capture_lane = 0;
  std::vector<size_t> capture_tail;

  StreamWorker::Place tail() const { return {worker, queued}; }
};
using StreamRef = std::shared_ptr<Stream>;

struct Event {
  int device = 0;
  bool is_recorded = false;
  StreamWorker::Place place;
  Clock clock;
  std::thread::id recorder;
  // The capture during which it was recorded, if any.
  std::shared_ptr<Capture> capture;
  std::vector<size_t> nodes;
};
using EventRef = std::shared_ptr<Event>;

struct MemoryPool {
  int device = 0;
  uint64_t number = 0;
  uint64_t reachable = 0;
  uint64_t release_threshold = 0;
  uint64_t reserved = 0;
  uint64_t used = 0;
};

struct Graph {
  std::vector<GraphNode> nodes;
  size_t lanes = 0;
};

struct GraphExec {
  std::shared_ptr<const Graph> graph;
  // For each of the graph's lanes: its number here, and its last position.
  std::vector<std::pair<size_t, uint64_t>> lanes;
  // Clock of the last launch.
  Clock clock;
  std::optional<StreamWorker::Place> place;
};

// The memory of each device, unless a test sets another size.
constexpr uint64_t kDeviceBytes = uint64_t{1} << 30;

struct Device {
  int number = 0;
  // The vendor's number of the device on the machine, whatever devices are
  // visible.
  int machine_number = 0;
  int retained = 0;
  std::atomic<int> broken{0};
  StreamRef default_stream;
  std::vector<StreamRef> streams;
  int next_stream = 1;
  uint64_t limit = kDeviceBytes;
  // Bytes allocated by cuMemAlloc.
  uint64_t used = 0;
  std::vector<std::shared_ptr<MemoryPool>> pools;
  // Bit d is set if contexts of this device may use memory of device d.
  uint64_t peers = 0;
};

// A context that the program knows: the primary one of its device, or one that
// differs by its handle alone. Null and -1: none.
struct ContextRef {
  void* handle = nullptr;
  int device = -1;
};

// Objects that the program identifies by handles. Handles are never reused.
template <typename T>
class HandleTable {
 public:
  void* Add(std::shared_ptr<T> object) {
    void* const handle = new char;
    objects_[handle] = std::move(object);
    return handle;
  }
  std::shared_ptr<T> Find(const void* handle) const {
    const auto it = objects_.find(handle);
    return it == objects_.end() ? nullptr : it->second;
  }
  bool WasRemoved(const void* handle) const {
    return removed_.contains(handle);
  }
  void Remove(const void* handle) {
    objects_.erase(handle);
    removed_.insert(handle);
  }

 private:
  std::unordered_map<const void*, std::shared_ptr<T>> objects_;
  std::set<const void*> removed_;
};

// The emulated driver's state. The driver's functions are in cuda_*.cc; this is
// the part that they share.
//
// Threads. `mutex` guards all members except where noted. It is never held
// during a wait.
class Driver {
 public:
  // Never destroyed.
  static Driver& Get();

  std::mutex mutex;
  std::vector<std::unique_ptr<Device>> devices;
  std::atomic<bool> is_initialized{false};
  MemoryTable& memory() { return *memory_; }
  HandleTable<Stream> streams;
  HandleTable<Event> events;
  HandleTable<MemoryPool> pools;
  HandleTable<Graph> graphs;
  HandleTable<GraphExec> graph_execs;
  HandleTable<ContextRef> other_contexts;
  std::vector<std::shared_ptr<Capture>> captures;

  // The calling thread's device; null if no context is current.
  Device* CurrentDevice();

  // Finds the stream of a program's handle. Returns 0 or an error; reports the
  // use of a destroyed stream.
  int FindStream(void* handle, StreamRef* stream);
  // As FindStream, or the error that broke its device.
  int FindUsableStream(void* handle, StreamRef* stream);
  int FindEvent(void* handle, EventRef* event);
  StreamRef NewStream(Device& device, bool is_blocking);
  void DestroyStream(void* handle);

  // Queues or captures; `order` is null for the calling thread's order.
  // `prepare` has been called unless the stream captures.
  int Queue(Stream& stream, StreamTask task, const Clock* order);
  // The steps of Queue, for work that queues more than what runs.
  OperationRef Begin(Stream& stream, const std::string& name,
                     const Clock* order,
                     std::vector<StreamWorker::Place>* after);
  // Checks the accesses, unless they depend on bytes on the device, and returns
  // the function that runs the task. If the process continues although the task
  // is not ordered after another, that one is added to `after`, so that nothing
  // else fails and ThreadSanitizer sees no race of ours.
  std::function<void()> Runner(const OperationRef& operation, int device,
                               StreamTask task,
                               std::vector<StreamWorker::Place>* after);
  uint64_t NextIndex() { return next_index_++; }
  std::pair<size_t, uint64_t> TakeLane();

  // The capture of a stream that waits for this default stream, or null.
  Capture* FindImplicitCapture(const Stream& stream) const;
  // Returns 0, or why the stream cannot be used: the call would disturb a
  // capture, which it breaks.
  int CheckImplicitCapture(Stream& stream);
  // For calls that are forbidden while the thread, or with mode global any
  // thread, captures. Returns 0, or 900 after breaking the captures.
  int CheckUnsafeCall();

  int RecordEvent(Event& event, Stream& stream);
  int WaitEvent(Stream& stream, const Event& event);

  // The host learned that the operations in the clock have happened; with
  // `for_all`, all threads did.
  void JoinHost(const Clock& clock, bool for_all);
  Clock HostClock();
  // Waits for positions without the lock, then joins the clock.
  void WaitOnHost(std::unique_lock<std::mutex>& lock,
                  const std::vector<StreamWorker::Place>& places,
                  const Clock& clock);
  // Waits for all streams of a device.
  void SynchronizeDevice(std::unique_lock<std::mutex>& lock, Device& device);

  // The host's current operation, for the checker.
  OperationRef HostOperation(const std::string& name);
  // Frees the memory permanently, after all its users.
  void FreeOnHost(Allocation& allocation, const char* function);

  // Called for a thread that exits.
  void Publish(const Clock& clock);

 private:
  Driver();

  // The result of checking an operation.
  struct Verdict {
    bool may_run = true;
    std::vector<AllocationRef> written;
    std::vector<OperationRef> conflicts;
  };
  Verdict Check(const OperationRef& operation, const StreamTask& task,
                int device);
  void CheckAccess(const OperationRef& operation, const StreamTask& task,
                   int device, const MemoryAccess& access, Verdict* verdict);
  // Whether kernels of a device may access an allocation.
  bool IsReachable(int device, const Allocation& allocation) const;
  // Describes how [low, high), which begins in `allocation` if it is not null,
  // goes beyond it; empty if it does not.
  std::string Misses(const Allocation* allocation, uint64_t low,
                     uint64_t high) const;
  int AddNode(Stream& stream, StreamTask task);

  std::unique_ptr<MemoryTable> memory_;
  // Operations known to every thread, and those known to any thread.
  Clock known_to_all_;
  Clock known_to_any_;
  uint64_t next_index_ = 1;
  // Operations that have not declared their accesses.
  int undeclared_ = 0;
  // The last position assigned in each lane, and the lanes without owner.
  std::vector<uint64_t> lanes_;
  std::vector<size_t> free_lanes_;
};

// The driver's state of a thread of the program.
struct ThreadState {
  ThreadState() = default;
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;
  ~ThreadState();

  Clock known;
  bool is_known = false;
  // The last is current.
  std::vector<ContextRef> contexts;
  int capture_mode = 0;
  std::vector<std::pair<int, StreamRef>> own_streams;
  // Applied to the work that the call queues.
  std::optional<GpuFault> fault;
  // The word of a fault that the function implements.
  std::string answer;
};
ThreadState& ThisThread();

// Wraps every exported function: counts the call, and applies faults. `body`
// returns a CUresult.
enum class Needs { kNothing, kInit, kContext };
int Enter(const GpuCall& call, Needs needs, const std::function<int()>& body);
// Returns `value`, or the value of the call's fault; within `body`.
int Planned(int value);

// Resets the driver to the state of a new process: queued work ends first, then
// contexts are destroyed with all memory on their devices, pinned memory and
// imports.
void ResetDriver();

// "3rd on stream 2 of device 0".
std::string DescribePlace(const Stream& stream, uint64_t place);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_DRIVER_DRIVER_H_
