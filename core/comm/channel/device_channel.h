#ifndef SHERD_CORE_COMM_CHANNEL_DEVICE_CHANNEL_H_
#define SHERD_CORE_COMM_CHANNEL_DEVICE_CHANNEL_H_

#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/channel/call_supervisor.h"
#include "sherd/core/comm/channel/channel.h"
#include "sherd/core/comm/channel/collective_queue.h"
#include "sherd/core/comm/channel/device_group.h"
#include "sherd/core/comm/collective/collective.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/comm/work.h"

namespace sherd::internal {

struct DeviceChannelOptions {
  // For leaving together; the group's, which outlives the channel.
  Store* store = nullptr;
  absl::Duration timeout;
  // Runs the continuations of Works; outlives the channel.
  CollectiveQueue* queue = nullptr;
};

// Calls on the memory of a device: a call is compared and queued on a stream;
// the DeviceGroup watches for its end and reports it here.
//
// Threads. Safe from any thread.
class DeviceChannel final : public Channel, private DeviceGroup::Owner {
 public:
  DeviceChannel(const BackendInfo& backend, CallSupervisor& calls,
                DeviceChannelOptions options);

  // Opens the connection. Called before the first call.
  absl::Status Open(DeviceGroupOptions options);
  // Undoes Open.
  void TakeBack(Deadline deadline);

  absl::Status Run(Collective& call) override;
  Work Start(const Collective& call) override;
  void WaitIdle() override { Synchronize().IgnoreError(); }
  void Abort() override { group_->Abort(); }
  void Close() override;
  // Ends the channel without a call to the vendor's library, whose resources
  // leak.
  void Abandon() { group_->Abandon(); }

  // As those of ProcessGroup.
  absl::Status Synchronize();
  absl::Status Batch(absl::FunctionRef<absl::Status()> calls);
  bool IsInBatch() const { return group_->IsInBatch(); }
  absl::StatusOr<std::shared_ptr<const void>> Register(MutableBytes buffer) {
    return group_->Register(buffer);
  }
  static absl::Status RefuseBatch(const Membership& membership,
                                  absl::string_view why);

  // For connections that are made from this one.
  const std::shared_ptr<DeviceGroup>& group() const { return group_; }

 private:
  absl::Status Queue(Collective& call, std::shared_ptr<WorkState>* work);
  absl::Status Launch(const Collective& call, const FlightTicket& ticket,
                      std::shared_ptr<WorkState>* work);

  absl::Duration LeaveTime() const;
  bool AllLeave();

  absl::Status PeerError() override;
  absl::Status DeadPeer(const Collective& call) override;
  absl::Status TimeoutError(const Collective& call) override;
  absl::Status Fail(const Collective& call, absl::Status symptom) override;
  void Failed(const FlightTicket& ticket, const absl::Status& status) override;
  void RunInBackground(std::function<void()> task) override;

  const DeviceChannelOptions options_;
  std::shared_ptr<DeviceGroup> group_;
  // Guarded by group_->call_mutex(), like what follows.
  EvenBlocks even_blocks_;
  // The last call of the current batch.
  Collective batched_;
  // Used by the watch's thread: how often a rank on another host was checked.
  int looks_ = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_DEVICE_CHANNEL_H_
