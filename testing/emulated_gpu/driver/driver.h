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

// What is queued on a stream, or captured.
struct StreamTask {
  std::string name;
  std::vector<MemoryAccess> accesses;
  // In place of `accesses`, where only the bytes on the device tell: called
  // before `run`, by the thread that runs.
  std::function<std::vector<MemoryAccess>()> late_accesses;
  std::function<int()> run;
  // As in QueuedOperation.
  std::function<std::function<int()>()> prepare;
  // Memory of any device; else that which the stream's device reaches.
  bool is_copy = false;
};

struct GraphNode {
  StreamTask task;
  // Nodes of one lane follow each other.
  size_t lane = 0;
  // Numbers of nodes before this one.
  std::vector<size_t> after;
};

struct Stream;

// What streams capture until its end.
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
  // In its device.
  int number = 0;
  bool is_default = false;
  // Whether it waits for the default stream and is waited for.
  bool is_blocking = true;
  // The program has destroyed it; what is queued still counts for what waits
  // for the device.
  bool is_destroyed = false;
  size_t lane = 0;
  // Place in the lane before the stream's first.
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
  // Where it was recorded while the stream captured.
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
  // For each of the graph's lanes: its number here, and its last place.
  std::vector<std::pair<size_t, uint64_t>> lanes;
  // The last launch.
  Clock clock;
  std::optional<StreamWorker::Place> place;
};

// That each device has unless a test wants it otherwise.
constexpr uint64_t kDeviceBytes = uint64_t{1} << 30;

struct Device {
  int number = 0;
  // What the vendor calls the machine's number, whatever is visible.
  int machine_number = 0;
  int retained = 0;
  std::atomic<int> broken{0};
  StreamRef default_stream;
  std::vector<StreamRef> streams;
  int next_stream = 1;
  uint64_t limit = kDeviceBytes;
  // By cuMemAlloc.
  uint64_t used = 0;
  std::vector<std::shared_ptr<MemoryPool>> pools;
  // Bit d: contexts of this device may use memory of device d.
  uint64_t peers = 0;
};

// A context of which the program knows: the primary one of its device, or one
// that differs by its handle alone. Null and -1 for none.
struct ContextRef {
  void* handle = nullptr;
  int device = -1;
};

// Objects that the program names by handles. A handle is never used twice.
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

// The emulated driver's state. What a function of the driver does is in
// cuda_*.cc; this is what they share.
//
// Threads. `mutex` guards everything but what says otherwise. Nothing waits
// with it locked.
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

  // The calling thread's; null if no context is current.
  Device* CurrentDevice();

  // Of a handle that the program passed: 0, or the error, and it reports what
  // was destroyed.
  int FindStream(void* handle, StreamRef* stream);
  // As FindStream, or what broke its device.
  int FindUsableStream(void* handle, StreamRef* stream);
  int FindEvent(void* handle, EventRef* event);
  StreamRef NewStream(Device& device, bool is_blocking);
  void DestroyStream(void* handle);

  // Queues or captures; `order` is null for the calling thread's. `prepare` has
  // been called unless the stream captures.
  int Queue(Stream& stream, StreamTask task, const Clock* order);
  // Its steps: what queues more than runs uses them.
  OperationRef Begin(Stream& stream, const std::string& name,
                     const Clock* order,
                     std::vector<StreamWorker::Place>* after);
  // Checks the accesses, unless only the device can tell them, and returns what
  // runs the task. Where the process goes on although the task is not ordered
  // behind another, that one joins `after`: nothing else goes wrong then, and
  // ThreadSanitizer sees no race of ours.
  std::function<void()> Runner(const OperationRef& operation, int device,
                               StreamTask task,
                               std::vector<StreamWorker::Place>* after);
  uint64_t NextIndex() { return next_index_++; }
  std::pair<size_t, uint64_t> TakeLane();

  // The capture of a stream that waits for this one, a default stream, or null.
  Capture* FindImplicitCapture(const Stream& stream) const;
  // 0, or why the stream cannot be used: a capture that it would disturb, which
  // is broken then.
  int CheckImplicitCapture(Stream& stream);
  // 0, or 900 after having broken captures: for what must not be called while
  // the thread, or with mode global anybody, captures.
  int CheckUnsafeCall();

  int RecordEvent(Event& event, Stream& stream);
  int WaitEvent(Stream& stream, const Event& event);

  // The host learned that what the clock knows has happened; `for_all` threads.
  void JoinHost(const Clock& clock, bool for_all);
  Clock HostClock();
  // Waits for places without the lock, then joins the clock.
  void WaitOnHost(std::unique_lock<std::mutex>& lock,
                  const std::vector<StreamWorker::Place>& places,
                  const Clock& clock);
  // Waits for all streams of a device.
  void SynchronizeDevice(std::unique_lock<std::mutex>& lock, Device& device);

  // What the host does now, for the checker.
  OperationRef HostOperation(const std::string& name);
  // Frees for good, after all that used it.
  void FreeOnHost(Allocation& allocation, const char* function);

  // Of the thread that exits.
  void Publish(const Clock& clock);

 private:
  Driver();

  // What the check of an operation comes to.
  struct Verdict {
    bool may_run = true;
    std::vector<AllocationRef> written;
    std::vector<OperationRef> conflicts;
  };
  Verdict Check(const OperationRef& operation, const StreamTask& task,
                int device);
  void CheckAccess(const OperationRef& operation, const StreamTask& task,
                   int device, const MemoryAccess& access, Verdict* verdict);
  // Whether kernels of a device may use an allocation.
  bool IsReachable(int device, const Allocation& allocation) const;
  // How [low, high), which begins in `allocation` if it is not null, leaves it;
  // empty if it does not.
  std::string Misses(const Allocation* allocation, uint64_t low,
                     uint64_t high) const;
  int AddNode(Stream& stream, StreamTask task);

  std::unique_ptr<MemoryTable> memory_;
  // What every thread knows, and what any thread knows.
  Clock known_to_all_;
  Clock known_to_any_;
  uint64_t next_index_ = 1;
  // Operations that have not declared their accesses.
  int undeclared_ = 0;
  // The last place that was given out in each lane, and those without owner.
  std::vector<uint64_t> lanes_;
  std::vector<size_t> free_lanes_;
};

// A thread of the program, as the driver knows it.
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
  // Goes into what the call queues.
  std::optional<Fault> fault;
  // The word of a fault that the function knows.
  std::string answer;
};
ThreadState& ThisThread();

// Wraps every exported function: counts the call, and does what faults say.
// `body` returns a CUresult.
enum class Needs { kNothing, kInit, kContext };
int Enter(const GpuCall& call, Needs needs, const std::function<int()>& body);
// `value`, or what a fault of the call has in its place: within `body`.
int Planned(int value);

// As in a new process: what is queued ends first, then contexts go with all
// that is on their devices, pinned memory and imports.
void ResetDriver();

// "3rd on stream 2 of device 0".
std::string DescribePlace(const Stream& stream, uint64_t place);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_DRIVER_DRIVER_H_
