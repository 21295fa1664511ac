#ifndef SHERD_CORE_COMM_CHANNEL_CALL_SUPERVISOR_H_
#define SHERD_CORE_COMM_CHANNEL_CALL_SUPERVISOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/collective/call_comparison.h"
#include "sherd/core/comm/collective/collective.h"
#include "sherd/core/comm/counters.h"
#include "sherd/core/comm/flight/flight_dump.h"
#include "sherd/core/comm/flight/flight_recorder.h"
#include "sherd/core/comm/group/membership.h"
#include "sherd/core/comm/group/peer_monitor.h"

namespace sherd::internal {

// The steps around every call of a rank of a group, whichever channel carries
// it out, in this order:
//   Begin      gives the call its number, records it
//   Compare    with the other ranks' calls, unless it is a message
//   MaybeInjectFault, here and before and after each post
//   Fail       after an error: poisons the group, finds the root cause
//   End        counts it, ends its record, dumps the recorder after an error
// For a call that was queued on a device, DeviceGroup ends the record once the
// device has completed it.
//
// Threads. Safe from any thread, but for Compare: one call on the host and one
// on a device at a time.
//
// Cost. A successful call allocates nothing.
class CallSupervisor {
 public:
  using Exchange = CallComparison::Exchange;

  // `membership` and `peers` outlive it. `info`: of a member; a process that is
  // not one calls counters() alone.
  CallSupervisor(const Membership& membership, PeerMonitor& peers,
                 std::optional<FlightGroupInfo> info);
  CallSupervisor(const CallSupervisor&) = delete;
  CallSupervisor& operator=(const CallSupervisor&) = delete;

  // Called before the first call. Null: calls are not compared.
  void SetComparison(std::unique_ptr<CallComparison> comparison) {
    comparison_ = std::move(comparison);
  }
  // Null if the host does not compare calls.
  CallComparison* comparison() const { return comparison_.get(); }

  const Membership& membership() const { return membership_; }
  PeerMonitor& peers() const { return peers_; }
  const GroupTag& tag() const { return *tag_; }
  FlightRecorder& recorder() const { return tag_->recorder(); }
  GroupCounters counters() const;

  // `started`: the call begins to run now; otherwise MarkStarted records its
  // start.
  FlightTicket Begin(Collective& call, OperationPath path, bool started) {
    std::atomic<uint64_t>& count =
        IsPointToPoint(call.op) ? messages_ : collectives_;
    call.sequence = count.fetch_add(1, std::memory_order_relaxed) + 1;
    return recorder().Begin(*tag_, call, path, started);
  }
  void MarkStarted(const FlightTicket& ticket) {
    recorder().MarkStarted(ticket);
  }
  absl::Status Compare(const Collective& call, Exchange exchange) {
    if (IsPointToPoint(call.op)) return absl::OkStatus();
    SHERD_RETURN_IF_ERROR(
        MaybeInjectFault(FaultPoint::kBeforeComparison, call));
    return comparison_ == nullptr ? absl::OkStatus()
                                  : comparison_->Compare(call, exchange);
  }
  absl::Status MaybeInjectFault(FaultPoint point,
                                const Collective& call) const {
    if (FaultPointsAreArmed()) [[unlikely]] {
      return membership_.MaybeInjectFault(point, Name(call.op));
    }
    return absl::OkStatus();
  }
  // Returns the error to report for the failure.
  absl::Status Fail(const Collective& call, absl::Status symptom) {
    return peers_.Fail(Name(call.op), call.sequence, std::move(symptom));
  }
  // Returns `status`.
  absl::Status End(const FlightTicket& ticket, absl::Status status) {
    recorder().End(ticket, status.code());
    return status.ok() ? status : EndFailed(std::move(status));
  }

  // For a call that is not carried out: returns `status` with the call's name
  // and, if the group is no longer usable, the reason.
  absl::Status Describe(const Collective& call, absl::Status status) const {
    return membership_.Describe(Name(call.op), call.sequence,
                                std::move(status));
  }
  absl::Status Refusal(const Collective& call) const {
    return peers_.Refusal(Name(call.op), call.sequence);
  }

  // Records which rank of the group failed.
  void SetFailedRank(int rank) {
    tag_->SetFailedRank(membership_.world_ranks()[rank]);
  }
  // Only the first call dumps the recorder: a group is dumped when it fails.
  void DumpOnce(FlightReason reason, absl::string_view detail);

 private:
  absl::Status EndFailed(absl::Status status);

  const Membership& membership_;
  PeerMonitor& peers_;
  // Null if this process is not a member.
  const std::unique_ptr<GroupTag> tag_;
  std::unique_ptr<CallComparison> comparison_;
  // Counts collectives, in the order in which they are called.
  std::atomic<uint64_t> collectives_{0};
  std::atomic<uint64_t> messages_{0};
  std::atomic<bool> dumped_{false};
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_CALL_SUPERVISOR_H_
