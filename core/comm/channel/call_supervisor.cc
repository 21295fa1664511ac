#include "sherd/core/comm/channel/call_supervisor.h"

namespace sherd::internal {

CallSupervisor::CallSupervisor(const Membership& membership, PeerMonitor& peers,
                               std::optional<FlightGroupInfo> info)
    : membership_(membership),
      peers_(peers),
      tag_(info ? std::make_unique<GroupTag>(*std::move(info)) : nullptr) {}

GroupCounters CallSupervisor::counters() const {
  return tag_ == nullptr ? GroupCounters() : tag_->counters();
}

absl::Status CallSupervisor::EndFailed(absl::Status status) {
  DumpOnce(absl::IsDeadlineExceeded(status) ? FlightReason::kTimeout
                                            : FlightReason::kPoisoned,
           status.message());
  return status;
}

void CallSupervisor::DumpOnce(FlightReason reason, absl::string_view detail) {
  if (!dumped_.exchange(true)) DumpFlight(*tag_, reason, detail);
}

}  // namespace sherd::internal
