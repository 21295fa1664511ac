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

// The device part of one rank of a group: queues operations on streams and
// makes sure that they end.
//
// Streams. Synchronous calls go to the caller's current stream, asynchronous
// ones to a stream of the group, behind what the current stream holds. An
// operation on another stream than the one before waits for it, so that all
// run in the order of the calls.
//
// Ends. An event behind each operation records that it ended. The process's
// DeviceWatch checks the first event of each stream, deadlines, the backend and
// the other ranks. If something is wrong, it notifies the owner, who finds the
// root cause and aborts; operations in flight then end with the owner's error,
// once the streams no longer use the buffers, or kGrace later.
//
// Program. A continuation of a Work, and an object that the Work keeps, may
// hold the last handle of anything, the owner included. Continuations are run,
// and kept objects released, by threads that call or wait, or else by the
// owner's own thread, never by the watch, and without a lock.
//
// Cost. A synchronous call allocates nothing once the group is warm.
//
// Threads. Methods that queue are called with call_mutex() held; all others
// from any thread, without it.
class DeviceGroup final : public DeviceWatch::Watched,
                          public std::enable_shared_from_this<DeviceGroup> {
 public:
  // The owner of this device part. Called without locks of the DeviceGroup
  // except, at times, call_mutex(). Outlives the part until Close or Abandon
  // has returned.
  class Owner {
   public:
    virtual ~Owner() = default;

    // An error reported by another rank, or by another part of this one; fast.
    virtual absl::Status PeerError() = 0;
    // An error if a rank that `call` may need has died; slow.
    virtual absl::Status DeadPeer(const Collective& call) = 0;
    // The error that `call` timed out, with the ranks it waited for.
    virtual absl::Status TimeoutError(const Collective& call) = 0;
    // Ends the group because of `symptom`, which is that of `call`, and aborts
    // this part. Returns the error to report.
    virtual absl::Status Fail(const Collective& call, absl::Status symptom) = 0;
    // `ticket` ended with an error.
    virtual void Failed(const FlightTicket& ticket,
                        const absl::Status& status) = 0;
    // Runs `task`, which calls the program, on a thread of the owner's. The
    // task has run when the owner is destroyed.
    virtual void RunInBackground(std::function<void()> task) = 0;
  };

  // How long after a failure the streams may continue to use the buffers.
  static constexpr absl::Duration kGrace = absl::Seconds(2);

  // The group is watched from now on. `owner` is not called before an operation
  // is in flight.
  static absl::StatusOr<std::shared_ptr<DeviceGroup>> Create(
      DeviceGroupOptions options, Owner& owner, FlightRecorder& recorder);
  ~DeviceGroup() override;

  const Device& device() const { return options_.device; }
  DeviceRuntime& runtime() const { return *options_.runtime; }
  absl::Mutex& call_mutex() { return call_mutex_; }

  // Whether `desc`, which is valid, can be carried out here and now.
  // kUnimplemented if it needs several steps and is in a batch or a graph;
  // kFailedPrecondition in a batch of another group.
  absl::Status Admit(const Collective& desc);

  // Queues `desc`, including the copies of this rank's own blocks. OK means
  // that it is queued and that `ticket` will be ended. After an error the
  // caller must fail the group.
  absl::Status Queue(const Collective& desc, const FlightTicket& ticket);
  absl::StatusOr<std::shared_ptr<WorkState>> EnqueueOnSideStream(
      const Collective& desc, const FlightTicket& ticket);

  // Calls of Queue on this thread between BeginBatch and EndBatch are one
  // operation.
  absl::Status BeginBatch();
  // `keep`: no error occurred in between.
  absl::Status EndBatch(bool keep);
  // Whether this thread is in a batch; then it holds call_mutex().
  bool IsInBatch() const {
    return order_.batch_thread.load(std::memory_order_relaxed) ==
           std::this_thread::get_id();
  }

  // Waits until all operations queued so far have ended, and returns the first
  // error. Later operations of the calling thread are ordered behind them. Not
  // in a batch.
  absl::Status Synchronize();

  // Releases the objects kept by Works that have ended. Not with call_mutex()
  // held, which the end of a registration takes.
  void Reclaim();

  absl::StatusOr<std::shared_ptr<const void>> Register(MutableBytes buffer);

  // With nothing in flight and the device current.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(
      const CommunicatorOptions& options, int color, int key);
  absl::StatusOr<std::unique_ptr<Communicator>> Shrink(
      const CommunicatorOptions& options, absl::Span<const int> excluded);

  // Makes running operations end soon. Any thread, never waits.
  void Abort();

  // Ends the part. `all_leave` returns whether all other ranks leave too; it is
  // called only if there was no error. Nothing is in flight.
  void Close(absl::FunctionRef<bool()> all_leave, Deadline deadline);
  // As Close, but without a call to the vendor's library, whose resources leak.
  void Abandon();

  Sight Look() override;

 private:
  friend class DeviceWork;
  using Clock = Deadline::Clock;

  // An operation in flight on a stream.
  struct Pending {
    uint64_t number = 0;
    // Null while the operation is being posted, and for all but the last of a
    // batch: it ends with the next operation that has an event.
    DeviceEvent event = nullptr;
    FlightTicket ticket;
    CollectiveOp op = CollectiveOp::kBarrier;
    int root = 0;
    uint64_t sequence = 0;
    Deadline deadline = Deadline::Infinite();
    // Of an asynchronous call; then the Work owns the event.
    std::shared_ptr<DeviceWork> work;
    // A failure has been reported to the caller; only the buffers are still in
    // use.
    bool reported = false;
  };
  // The operations of one stream, in order, in a ring.
  struct Lane {
    void* stream = nullptr;
    std::vector<Pending> ring;
    size_t head = 0;
    size_t count = 0;
    // Event of the last operation that ended: a thread that waits for all
    // queries it once more.
    DeviceEvent last_event = nullptr;
    std::shared_ptr<DeviceWork> last_work;

    Pending& At(size_t i) { return ring[(head + i) % ring.size()]; }
    Pending& Push();
    void Pop();
  };
  // To be published once the lock has been released.
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
  // Which thread runs the continuations of Works that ended.
  enum class Continue { kHere, kInBackground };

  absl::StatusOr<LaunchSite> Enter(bool on_side_stream);
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
  // For calls that would wait for the batch in which they are made.
  absl::Status RefuseInBatch() const;
  // For calls that need events or a batch of their own.
  absl::Status RefuseInBatchOfAnother() const;
  using Registered = std::pair<const void*, size_t>;
  void Deregister(const Registered& buffer, void* handle);

  // Finds the operations that have ended; true if there are any.
  bool Progress(Continue where = Continue::kHere);
  bool ProgressOn(Lane& lane, Completions& completed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(in_flight_.mutex);
  void End(Lane& lane, Completions& completed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(in_flight_.mutex);
  void Report(const Completions& completed, Continue where);
  // The first call, in call order, whose end has not been reported; an overdue
  // one takes precedence.
  std::optional<Collective> FirstInFlight(bool& overdue);
  absl::Status Symptom(const Collective& call, bool overdue);
  // Called without locks.
  void ReportAll(Continue where);
  // Steps of Close. False if the communicator was closed already.
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
  // The group's resources on the device.
  struct Resources {
    // Of asynchronous calls.
    DeviceStream side;
    // Orders `side` behind the current stream.
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
    // Handles that the communicator returned for them.
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
    // Where the operation being posted is recorded.
    void* posting ABSL_GUARDED_BY(mutex) = nullptr;
    // After abort starts, success can no longer be determined.
    bool aborting ABSL_GUARDED_BY(mutex) = false;
    absl::Status failure ABSL_GUARDED_BY(mutex);
    // The vendor library's error for an event.
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
