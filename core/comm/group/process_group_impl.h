#ifndef SHERD_CORE_COMM_GROUP_PROCESS_GROUP_IMPL_H_
#define SHERD_CORE_COMM_GROUP_PROCESS_GROUP_IMPL_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/channel/call_supervisor.h"
#include "sherd/core/comm/channel/channel.h"
#include "sherd/core/comm/channel/collective_queue.h"
#include "sherd/core/comm/channel/device_channel.h"
#include "sherd/core/comm/channel/device_connector.h"
#include "sherd/core/comm/channel/host_channel.h"
#include "sherd/core/comm/collective/collective_call.h"
#include "sherd/core/comm/flight/watchdog.h"
#include "sherd/core/comm/group/membership.h"
#include "sherd/core/comm/group/peer_monitor.h"
#include "sherd/core/comm/group/survivors.h"
#include "sherd/core/comm/process_group.h"

namespace sherd {

// The parts of a ProcessGroup: the ranks (Membership), their health
// (PeerMonitor), and for each kind of memory a Channel that carries out the
// calls which are admitted here. Its methods are those of ProcessGroup.
class ProcessGroup::Impl final : private internal::PeerMonitor::Owner {
 public:
  // Makes no connection. `backend` outlives it.
  Impl(const Backend& backend, ProcessGroupOptions options);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  // End(), for a group whose joining failed.
  ~Impl() override;
  // Destroys the group if that has not been done. Resources on a device leak.
  void End();

  // Creates a group that is connected. `operation` is for errors. `have_met`:
  // as ProcessGroupAccess::CreateAfterMeeting.
  static absl::StatusOr<std::shared_ptr<ProcessGroup>> Create(
      const Backend& backend, ProcessGroupOptions options,
      absl::string_view operation, internal::DeviceOrigin& origin,
      bool have_met = false);

  // The one path of a call: it is validated, and carried out by a channel.
  absl::Status Run(internal::CollectiveCall call,
                   const CollectiveOptions& options);
  Work Start(internal::CollectiveCall call, const CollectiveOptions& options);
  // Ranks that are not members get their error before a list is checked.
  internal::Place place() const {
    return {membership_.is_member() ? membership_.rank() : 0,
            membership_.size()};
  }
  OperationPath PathOf(CollectiveOp op, DType dtype, ReduceOp reduction,
                       DeviceType device) const;

  absl::StatusOr<std::shared_ptr<ProcessGroup>> NewGroup(
      absl::Span<const int> ranks, const NewGroupOptions& options);
  absl::StatusOr<std::shared_ptr<ProcessGroup>> Split(
      int color, int key, const NewGroupOptions& options);
  absl::StatusOr<std::shared_ptr<ProcessGroup>> Shrink(
      const NewGroupOptions& options);

  absl::Status Synchronize();
  absl::Status Batch(absl::FunctionRef<absl::Status()> calls);
  absl::StatusOr<Allocator*> DeviceAllocator() const;
  absl::StatusOr<std::shared_ptr<const void>> Register(MutableBytes buffer);

  absl::Status Destroy();
  absl::Status OnDestroy(
      std::function<void(const absl::Status& health)> callback);
  void Abort(const absl::Status& cause);

  const ProcessGroupOptions& options() const { return options_; }
  const Backend& backend() const { return backend_; }
  const internal::Membership& membership() const { return membership_; }
  const internal::PeerMonitor& peers() const { return peers_; }
  const internal::CallSupervisor& calls() const { return calls_; }
  std::optional<Device> device() const;
  const BackendInfo* device_backend() const;
  std::shared_ptr<PeerMemory> peer_memory() const;

 private:
  // This rank's color and key, if all ranks of this group split it.
  struct SplitChoice {
    int color;
    int key;
    // Of all ranks.
    bool has_devices;
  };
  // Of a group that is made from this one.
  struct ChildPlan {
    absl::string_view operation;
    std::vector<int> ranks;
    // Distinguishes it from other groups that are created from this one.
    std::string label;
    const SplitChoice* split = nullptr;
    // Unset: after the timeout.
    std::optional<Deadline> join_deadline;
  };
  // The groups that were made from this one.
  struct Children {
    absl::Mutex mutex;
    // How often each list of ranks has become a group.
    std::map<std::string, int> counts ABSL_GUARDED_BY(mutex);
    // Held by Shrink.
    absl::Mutex shrink_mutex;
    std::unique_ptr<internal::SurvivorAgreement> survivors
        ABSL_GUARDED_BY(shrink_mutex);
  };

  // What is called when this rank leaves.
  struct Callbacks {
    absl::Mutex mutex;
    bool called ABSL_GUARDED_BY(mutex) = false;
    std::vector<std::function<void(const absl::Status&)>> pending
        ABSL_GUARDED_BY(mutex);
  };

  // How this rank's calls are compared with the others', as set by the knob.
  enum class CallCheck { kAuto, kMessage, kOff };
  static absl::StatusOr<CallCheck> GetCallCheck();

  // Steps of Create.
  absl::Status Join(Deadline deadline, internal::DeviceOrigin& origin,
                    bool have_met);
  absl::Status ConnectHost(CallCheck check, Deadline deadline);
  absl::Status ConnectDevice(Deadline deadline, internal::DeviceOrigin& origin);
  absl::Status MakeComparison(CallCheck check, Deadline deadline);
  CommunicatorOptions OptionsForCommunicator(Deadline deadline);

  // Checks whether `call` can be carried out, completes it, and selects its
  // channel: `channel` is initially the host's.
  absl::Status Admit(const CollectiveOptions& options,
                     internal::CollectiveCall& call,
                     internal::Channel*& channel) const;
  // Checks that the group has a device part, and that it is on `device`.
  absl::Status CheckDevice(const Collective& call, const Device& device) const;
  // In a group with a device part, checks that the buffers are in `place`.
  absl::Status CheckBuffers(const Collective& call, const Device& place) const;

  // Checks whether groups can be created from this one, with `options`.
  absl::Status CheckParent(absl::string_view operation,
                           const NewGroupOptions& options) const;
  // Returns a label for a list of ranks, with a count of its uses.
  std::string CountedLabel(absl::Span<const int> ranks);
  absl::StatusOr<std::shared_ptr<ProcessGroup>> MakeChild(
      const ChildPlan& plan, const NewGroupOptions& options);
  void SplitDevice(const ProcessGroupOptions& child, const SplitChoice& split,
                   internal::DeviceOrigin& origin);
  // One round of Shrink: null if a member failed meanwhile; `suspect` is then
  // that member, if known.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> ShrinkOnce(
      const NewGroupOptions& options, Deadline deadline,
      std::optional<int>& suspect)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(children_.shrink_mutex);
  // Records the ranks that Shrink excludes, and poisons this group.
  void LeaveOut(absl::Span<const int> members);

  void EndOperations() override;
  void FoundFailedRank(int rank) override { calls_.SetFailedRank(rank); }

  void CallOnDestroy();

  absl::Status Describe(absl::string_view operation,
                        absl::Status status) const {
    return membership_.Describe(operation, 0, std::move(status));
  }

  const ProcessGroupOptions options_;
  const Backend& backend_;
  internal::Membership membership_;
  internal::PeerMonitor peers_;
  internal::CallSupervisor calls_;
  Children children_;
  Callbacks on_destroy_;
  // Null if this process is not a member.
  std::unique_ptr<internal::HostChannel> host_;
  // Null if the group has no device part, and until it is connected.
  std::unique_ptr<internal::DeviceChannel> device_;
  // Runs asynchronous collectives in order, and the continuations of Works, on
  // a thread that the first one starts and that uses the members above.
  internal::CollectiveQueue queue_;
  // Ends operations that the backend does not end at their deadline.
  internal::Watchdog::Watch watch_;
};

namespace internal {

// What Init may do with groups and programs may not.
class ProcessGroupAccess {
 public:
  // As ProcessGroup::Create, for ranks that have completed ExchangeMembership
  // on options.store: options.processes are those of its Membership.
  static absl::StatusOr<std::shared_ptr<ProcessGroup>> CreateAfterMeeting(
      const Backend& backend, ProcessGroupOptions options);
};

}  // namespace internal

}  // namespace sherd

#endif  // SHERD_CORE_COMM_GROUP_PROCESS_GROUP_IMPL_H_
