#include "sherd/core/comm/channel/call_supervisor.h"

#include "sherd/core/base/status_macros.h"

namespace sherd::internal {

CallSupervisor::CallSupervisor(const Membership& membership, PeerMonitor& peers,
                               std::optional<FlightGroupInfo> info)
    : membership_(membership),
      peers_(peers),
      tag_(info ? std::make_unique<GroupTag>(*std::move(info)) : nullptr) {}

GroupCounters CallSupervisor::counters() const {
  return tag_ == nullptr ? GroupCounters() : tag_->counters();
}

FlightTicket CallSupervisor::Begin(Collective& call, OperationPath path,
                                   bool started) {
  std::atomic<uint64_t>& count =
      IsPointToPoint(call.op) ? messages_ : collectives_;
  call.sequence = count.fetch_add(1, std::memory_order_relaxed) + 1;
  return recorder().Begin(*tag_, call, path, started);
}

absl::Status CallSupervisor::Compare(const Collective& call,
                                     Exchange exchange) {
  if (IsPointToPoint(call.op)) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(MaybeInjectFault(FaultPoint::kBeforeComparison, call));
  return comparison_ == nullptr ? absl::OkStatus()
                                : comparison_->Compare(call, exchange);
}

absl::Status CallSupervisor::End(const FlightTicket& ticket,
                                 absl::Status status) {
  recorder().End(ticket, status.code());
  if (!status.ok()) {
    DumpOnce(absl::IsDeadlineExceeded(status) ? FlightReason::kTimeout
                                              : FlightReason::kPoisoned,
             status.message());
  }
  return status;
}

void CallSupervisor::DumpOnce(FlightReason reason, absl::string_view detail) {
  if (!dumped_.exchange(true)) DumpFlight(*tag_, reason, detail);
}

}  // namespace sherd::internal
