#ifndef SHERD_CORE_COMM_CHANNEL_DEVICE_CONNECTOR_H_
#define SHERD_CORE_COMM_CHANNEL_DEVICE_CONNECTOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/channel/device_channel.h"
#include "sherd/core/comm/channel/device_group.h"
#include "sherd/core/comm/group/membership.h"
#include "sherd/core/comm/group/peer_monitor.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/tensor/device.h"

namespace sherd::internal {

// The origin of a group's communicator on devices: created anew unless one of
// the other origins is set and works on all ranks.
struct DeviceOrigin {
  // Result of splitting the parent's communicator, and the store that it was
  // given.
  std::shared_ptr<Store> store;
  std::unique_ptr<Communicator> split;
  // The failed parent, and those of its ranks that are not in the new group.
  std::shared_ptr<DeviceGroup> parent;
  std::vector<int> excluded;
  // That of `split`.
  Device device;

  DeviceOrigin() = default;
  DeviceOrigin(const DeviceOrigin&) = delete;
  DeviceOrigin& operator=(const DeviceOrigin&) = delete;
  ~DeviceOrigin();
};

// Connects the device parts of the ranks of a group. Each step is taken by all
// ranks or by none.
class DeviceConnector {
 public:
  // All arguments outlive the connector.
  DeviceConnector(const Backend& backend, const Device& device,
                  const Membership& membership, PeerMonitor& peers,
                  DeviceOrigin& origin);

  // Opens `channel`, and returns each rank's device. Collective.
  //   kFailedPrecondition  Ranks have loaded different versions of the vendor's
  //                        library.
  //   other                A rank cannot take part; the message names it and
  //                        the reason.
  absl::StatusOr<std::vector<Device>> Connect(CommunicatorOptions options,
                                              DeviceChannel& channel);

 private:
  struct Facts;

  Facts OwnFacts() const;
  // Returns the facts of all ranks if each of them can take part. Success means
  // that no rank has failed before; the vendor's library would wait for a
  // failed rank until the deadline.
  absl::StatusOr<std::vector<Facts>> ExchangeFacts(Deadline deadline);
  absl::StatusOr<std::vector<Device>> ConnectAll(CommunicatorOptions options,
                                                 DeviceChannel& channel);
  absl::StatusOr<std::unique_ptr<Communicator>> MakeCommunicator(
      const CommunicatorOptions& options, absl::Span<const Facts> facts);
  absl::StatusOr<std::vector<absl::Status>> ExchangeStatus(
      absl::string_view step, const absl::Status& own, Deadline deadline);

  const Backend& backend_;
  const Device device_;
  const Membership& membership_;
  PeerMonitor& peers_;
  DeviceOrigin& origin_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_CHANNEL_DEVICE_CONNECTOR_H_
