#ifndef SHERD_CORE_COMM_CHANNEL_DEVICE_GROUP_H_
#define SHERD_CORE_COMM_CHANNEL_DEVICE_GROUP_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/channel/device_watch.h"
#include "sherd/core/comm/channel/own_block.h"
#include "sherd/core/comm/channel/work_state.h"
#include "sherd/core/comm/collective/device_emulation.h"
#include "sherd/core/comm/flight/flight_recorder.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::internal {

class DeviceWork;

struct DeviceGroupOptions {
  DeviceRuntime* runtime = nullptr;
  // With an index.
  Device device;
  int rank = 0;
  int size = 1;
  NativeOperations native;
  std::unique_ptr<Communicator> communicator;
};

// The device part of one rank of a group: queues operations on streams and sees
// to it that they end.
//
// Streams. Synchronous calls go to the caller's current stream, asynchronous
// ones to a stream of the group, behind what the current stream holds. An
// operation on another stream than the one before waits for it, so that all
// run in the order of the calls.
//
// Ends. An event behind each operation says that it ended. The process's
// DeviceWatch looks at the first of each stream, at deadlines, at the backend
// and at the other ranks. If something is wrong, the owner is told, who finds
// the culprit and aborts; what is in flight then ends with what the owner says,
// once the streams have let go of the buffers, or kGrace later.
//
// Program. What continues a Work, and what it keeps, may be the last handle of
// anything, the owner's too: it is run, and let go, by threads that call or
// wait, or else by the owner's own, never by the watch, and without a lock.
//
// Cost. A synchronous call allocates nothing once the group is warm.
//
// Threads. What queues is called with call_mutex() held; the rest from any
// thread, without it.
class DeviceGroup final : public DeviceWatch::Watched,
                          public std::enable_shared_from_this<DeviceGroup> {
 public:
  // Whose part this is. Called without locks of the DeviceGroup but, at times,
  // call_mutex(). Outlives the part until Close or Abandon returned.
  class Owner {
   public:
    virtual ~Owner() = default;

    // What another rank, or this one elsewhere, says is wrong; fast.
    virtual absl::Status PeerError() = 0;
    // That a rank that `call` may need is gone; slow.
    virtual absl::Status DeadPeer(const Collective& call) = 0;
    // That `call` did not end in time, and whom it waited for.
    virtual absl::Status TimeoutError(const Collective& call) = 0;
    // Ends the group because of `symptom`, which is that of `call`, and aborts
    // this part. Returns what is to be said of it.
    virtual absl::Status Fail(const Collective& call, absl::Status symptom) = 0;
    // `ticket` ended with an error.
    virtual void Failed(const FlightTicket& ticket,
                        const absl::Status& status) = 0;
    // Runs `task`, which calls the program, on a thread of the owner's. It has
    // run when the owner is gone.
    virtual void RunInBackground(std::function<void()> task) = 0;
  };

  // How long after a failure the streams may take to let go of the buffers.
  static constexpr absl::Duration kGrace = absl::Seconds(2);

  // Watched from now on. `owner` is not asked before there is something in
  // flight.
  static absl::StatusOr<std::shared_ptr<DeviceGroup>> Create(
      DeviceGroupOptions options, Owner& owner, FlightRecorder& recorder);
  ~DeviceGroup() override;

  const Device& device() const { return options_.device; }
  DeviceRuntime& runtime() const { return *options_.runtime; }
  absl::Mutex& call_mutex() { return call_mutex_; }

  // Why `desc`, of which nothing is wrong, cannot be carried out here and now:
  // kUnimplemented for what needs several steps, in a batch or a graph;
  // kFailedPrecondition in a batch of another group.
  absl::Status Admit(const Collective& desc);

  // Queues `desc`, whose own blocks nobody has copied. OK says that it is
  // queued, and that `ticket` will be ended. After an error the group has to
  // be failed.
  absl::Status Queue(const Collective& desc, const FlightTicket& ticket);
  absl::StatusOr<std::shared_ptr<WorkState>> EnqueueOnSideStream(
      const Collective& desc, const FlightTicket& ticket);

  // Between them, calls of Queue on this thread are one operation.
  absl::Status BeginBatch();
  // `keep`: no error in between.
  absl::Status EndBatch(bool keep);
  // Whether this thread is between them; then it holds call_mutex().
  bool IsInBatch() const {
    return order_.batch_thread.load(std::memory_order_relaxed) ==
           std::this_thread::get_id();
  }

  // Waits until what has been queued so far has ended, and returns the first
  // error. What the calling thread queues later is ordered behind it. Not in a
  // batch.
  absl::Status Synchronize();

  // Lets go of what Works that ended keep. Not with call_mutex() held, which
  // the end of a registration takes.
  void Reclaim();

  absl::StatusOr<std::shared_ptr<const void>> Register(MutableBytes buffer);

  // With nothing in flight and the device current.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      const CommunicatorOptions& options, int color, int key);
  absl::StatusOr<std::unique_ptr<Communicator>> Shrink(
      const CommunicatorOptions& options, absl::Span<const int> excluded);

  // Makes what runs end soon. Any thread, never waits.
  void Abort();

  // Ends the part: `all_leave` says whether all other ranks do so, too, and is
  // asked only if all is well. Nothing is in flight.
  void Close(absl::FunctionRef<bool()> all_leave, Deadline deadline);
  // The same without a call to the vendor's library: what it has stays behind.
  void Abandon();

  Sight Look() override;

 private:
  friend class DeviceWork;
  using Clock = Deadline::Clock;

  // What is in flight on a stream.
  struct Pending {
    uint64_t number = 0;
    // Null while it is being posted, and in a batch but for the last: it ends
    // with the next that has one.
    DeviceEvent event = nullptr;
    FlightTicket ticket;
    CollectiveOp op = CollectiveOp::kBarrier;
    int root = 0;
    uint64_t sequence = 0;
    Deadline deadline = Deadline::Infinite();
    // Of an asynchronous call; then it owns the event.
    std::shared_ptr<DeviceWork> work;
    // It has been told of a failure; only the buffers are waited for.
    bool told = false;
  };
  // The operations of one stream, in order, in a ring.
  struct Lane {
    void* stream = nullptr;
    std::vector<Pending> ring;
    size_t head = 0;
    size_t count = 0;
    // Of the last that ended: who waits for all asks it once more.
    DeviceEvent last_event = nullptr;
    std::shared_ptr<DeviceWork> last_work;

    Pending& At(size_t i) { return ring[(head + i) % ring.size()]; }
    Pending& Push();
    void Pop();
  };
  // To be told once the lock is gone.
  struct Completion {
    FlightTicket ticket;
    std::shared_ptr<DeviceWork> work;
  };
  using Completions = absl::InlinedVector<Completion, 8>;
  // Where an operation is queued.
  struct LaunchSite {
    DeviceStream stream;
    bool capturing = false;
  };

  DeviceGroup(DeviceGroupOptions options, Owner& owner,
              FlightRecorder& recorder);
  absl::Status Open();
  // Which thread runs what continues Works that ended.
  enum class Continue { kHere, kAside };

  absl::StatusOr<LaunchSite> Enter(bool aside);
  absl::Status OrderBehindLast(const LaunchSite& site);
  absl::Status Launch(const Collective& desc, const DeviceStream& stream);
  absl::Status Copy(const BlockCopy& copy, const DeviceStream& stream);
  absl::Status Post(Collective desc, const DeviceStream& stream);
  absl::Status QueueAt(const LaunchSite& site, const Collective& desc,
                       const FlightTicket& ticket,
                       std::shared_ptr<DeviceWork> work);
  void Track(const LaunchSite& site, const Collective& desc,
             const FlightTicket& ticket, std::shared_ptr<DeviceWork> work);
  std::vector<FlightTicket> Untrack(size_t count);
  absl::Status MarkEnd(const LaunchSite& site, DeviceWork* work);
  Lane& LaneOf(void* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(in_flight_.mutex);
  // For what would wait for the batch that it is called in.
  absl::Status RefuseInBatch() const;
  // For what needs its events or a batch of its own.
  absl::Status RefuseInBatchOfAnother() const;
  using Registered = std::pair<const void*, size_t>;
  void Deregister(const Registered& buffer, void* handle);

  // Sees what has ended; true if something has.
  bool Progress(Continue where = Continue::kHere);
  bool ProgressOn(Lane& lane, Completions& told)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(in_flight_.mutex);
  void End(Lane& lane, Completions& told)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(in_flight_.mutex);
  void Tell(const Completions& told, Continue where);
  // The first that has not been told of its end, by the order of the calls;
  // the overdue one before it, if there is one.
  std::optional<Collective> FirstInFlight(bool& overdue);
  absl::Status Symptom(const Collective& call, bool overdue);
  // Without locks.
  void TellAll(Continue where);
  // Steps of Close. False if it has been closed.
  bool CloseCommunicator(absl::FunctionRef<bool()> all_leave,
                         Deadline deadline);
  void GiveBack();
  void Disown();
  bool HasFailed();
  // Whether number `last` or one before it is in flight.
  bool IsInFlight(uint64_t last);

  DeviceGroupOptions options_;
  // Works outlive the owner.
  struct OwnerLink {
    Owner& callbacks;
    absl::Mutex mutex = {};
    bool is_there ABSL_GUARDED_BY(mutex) = true;
  };
  OwnerLink owner_;
  FlightRecorder& recorder_;
  DeviceEmulation emulation_;
  // What the group has on the device.
  struct Resources {
    // Of asynchronous calls.
    DeviceStream side;
    // How they are ordered behind the current stream.
    DeviceEvent fork = nullptr;
    // For barriers.
    std::shared_ptr<Storage> barrier;
  };
  Resources resources_;
  std::atomic<bool> abandoned_{false};

  absl::Mutex call_mutex_;
  // In which order calls are queued. Guarded by call_mutex_, but for
  // batch_thread.
  struct CallOrder {
    std::atomic<std::thread::id> batch_thread{};
    LaunchSite batch;
    size_t batch_calls = 0;
    std::optional<void*> last_stream;
    // The last asynchronous call in a graph that is being captured.
    std::shared_ptr<DeviceWork> captured;
  };
  CallOrder order_;
  // Guarded by call_mutex_.
  struct Registrations {
    std::map<Registered, std::weak_ptr<const void>> shared;
    // What the communicator gave for them.
    std::multiset<void*> handles;
  };
  Registrations registrations_;

  struct Connection {
    // Held by Abort and Look while they use the communicator, and to end it.
    absl::Mutex mutex;
    bool aborted ABSL_GUARDED_BY(mutex) = false;
  };
  Connection connection_;

  struct InFlight {
    absl::Mutex mutex;
    std::vector<std::unique_ptr<Lane>> lanes ABSL_GUARDED_BY(mutex);
    uint64_t queued ABSL_GUARDED_BY(mutex) = 0;
    // Where what is being posted was put.
    void* posting ABSL_GUARDED_BY(mutex) = nullptr;
    // After abort starts, success can no longer be determined.
    bool aborting ABSL_GUARDED_BY(mutex) = false;
    absl::Status failure ABSL_GUARDED_BY(mutex);
    // What the vendor's library said of an event.
    absl::Status broken ABSL_GUARDED_BY(mutex);
    // Works that ended and keep something.
    std::vector<std::shared_ptr<DeviceWork>> released ABSL_GUARDED_BY(mutex);
    std::atomic<bool> has_released{false};
    // The owner's thread has been asked to reclaim.
    std::atomic<bool> reclaiming{false};
  };
  InFlight in_flight_;

  // Of the watch's thread.
  struct WatchState {
    Clock::time_point failed_at;
    uint64_t stuck = 0;
    Clock::time_point next_look;
  };
  WatchState watch_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_DEVICE_GROUP_H_
