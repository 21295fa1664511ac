// Any bytes as a worker's device maps: they are refused, or the decoded maps
// are one to one.

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/tensor/device.h"
#include "sherd/rpc/devices/device_routes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using sherd::Device;
  using sherd::internal::DeviceRoutes;
  const std::string record(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<DeviceRoutes> caller =
      DeviceRoutes::Create(0, {"a", "b"}, {record, ""});
  const absl::StatusOr<DeviceRoutes> callee =
      DeviceRoutes::Create(1, {"a", "b"}, {record, ""});
  SHERD_CHECK(caller.status() == callee.status());
  if (!caller.ok()) return 0;
  std::set<Device> targets;
  for (int i = 0; i < 4; ++i) {
    const Device from(sherd::DeviceType::kCuda, i);
    const absl::StatusOr<Device> to = caller->OfArgument(1, from);
    if (!to.ok()) continue;
    SHERD_CHECK(targets.insert(*to).second);
    const absl::StatusOr<Device> back = callee->OfResult(0, *to);
    SHERD_CHECK(back.ok() && *back == from);
  }
  return 0;
}
