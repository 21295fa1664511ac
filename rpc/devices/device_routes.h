#ifndef SHERD_RPC_DEVICES_DEVICE_ROUTES_H_
#define SHERD_RPC_DEVICES_DEVICE_ROUTES_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/tensor/device.h"

namespace sherd::internal {

// Encodes a worker's device maps for the others: DeviceMapRecord of rpc.proto.
std::string EncodeDeviceMaps(const DeviceMaps& maps);

// The device of another worker to which a tensor on a device of this one goes.
// Arguments of a call follow the caller's map, and its result goes back by the
// same map, whichever the callee has. The CPU maps to the CPU unless a map has
// it.
//
// Threads. Immutable.
class DeviceRoutes {
 public:
  // No maps.
  DeviceRoutes() = default;

  // `records`: by rank, as EncodeDeviceMaps returned them there. All of them
  // are checked, so that the outcome is the same on all workers.
  //   kInvalidArgument  A record is malformed, or names an unknown worker, a
  //                     malformed device, a device without an index or without
  //                     memory, or a device twice on one side; the error names
  //                     the worker whose maps these are, with its rank.
  static absl::StatusOr<DeviceRoutes> Create(
      int rank, const std::vector<std::string>& names,
      const std::vector<std::string>& records);

  // Whether a map has a device of this worker.
  bool uses_devices() const { return uses_devices_; }

  // For an argument of a call to `callee`, or the result of a call of `caller`.
  //   kFailedPrecondition  No map has the device; the message says what to set.
  //   kUnimplemented       The device is meta, which has no data.
  absl::StatusOr<Device> OfArgument(int callee, const Device& device) const;
  absl::StatusOr<Device> OfResult(int caller, const Device& device) const;

 private:
  // By the other worker.
  using Routes = std::map<int, std::map<Device, Device>>;

  std::string NameOf(int rank) const;

  int rank_ = 0;
  std::vector<std::string> names_;
  Routes arguments_;
  Routes results_;
  bool uses_devices_ = false;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_DEVICES_DEVICE_ROUTES_H_
