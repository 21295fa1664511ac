#include "sherd/rpc/devices/device_routes.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/rpc/rpc.pb.h"

namespace sherd::internal {
namespace {

// Of what CallPayload can name.
constexpr int kMaxIndex = 0xffff;

// A device that a map may name; that of the CPU without an index.
absl::StatusOr<Device> ReadDevice(const std::string& text) {
  SHERD_ASSIGN_OR_RETURN(const Device device, Device::Parse(text));
  if (device.is_cpu()) return Device();
  if (device.is_cuda() && device.index >= 0 && device.index <= kMaxIndex) {
    return device;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", device.ToString(),
                   "\", expected \"cpu\", or \"cuda\" with an index"));
}

// The maps of one worker, checked.
absl::StatusOr<DeviceMaps> ReadRecord(const std::string& record,
                                      const std::vector<std::string>& names) {
  rpc::DeviceMapRecord entries;
  if (!entries.ParseFromString(record) ||
      entries.from_size() != entries.worker_size() ||
      entries.to_size() != entries.worker_size()) {
    return absl::InvalidArgumentError(
        "wrote device maps that are not of this version of Sherd");
  }
  DeviceMaps maps;
  for (int i = 0; i < entries.worker_size(); ++i) {
    const std::string& worker = entries.worker(i);
    if (std::find(names.begin(), names.end(), worker) == names.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "has invalid target node names in its device maps: ", Quoted(worker),
          " is not a worker; these are ", absl::StrJoin(names, ", ")));
    }
    const absl::StatusOr<Device> from = ReadDevice(entries.from(i));
    const absl::StatusOr<Device> to = ReadDevice(entries.to(i));
    absl::Status status = from.status();
    status.Update(to.status());
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("has invalid devices in its device map for ", worker,
                       ": ", PrintableLine(status.message())));
    }
    status = AddDeviceMap(maps, worker, {{*from, *to}});
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("has duplicated target devices in its device map for ",
                       worker, ": ", status.message()));
    }
  }
  return maps;
}

const Device* Find(const std::map<int, std::map<Device, Device>>& routes,
                   int worker, const Device& device) {
  const auto to_worker = routes.find(worker);
  if (to_worker == routes.end()) return nullptr;
  const auto found =
      to_worker->second.find(device.is_cpu() ? Device() : device);
  return found == to_worker->second.end() ? nullptr : &found->second;
}

absl::Status NoData() {
  return absl::UnimplementedError("that has no data which could travel");
}

}  // namespace

std::string EncodeDeviceMaps(const DeviceMaps& maps) {
  rpc::DeviceMapRecord record;
  for (const auto& [worker, devices] : maps) {
    for (const auto& [from, to] : devices) {
      record.add_worker(worker);
      record.add_from(from.ToString());
      record.add_to(to.ToString());
    }
  }
  return record.SerializeAsString();
}

absl::StatusOr<DeviceRoutes> DeviceRoutes::Create(
    int rank, const std::vector<std::string>& names,
    const std::vector<std::string>& records) {
  DeviceRoutes routes;
  routes.rank_ = rank;
  routes.names_ = names;
  const std::string& own_name = names[static_cast<size_t>(rank)];
  const auto uses = [&](const Device& device) {
    routes.uses_devices_ |= !device.is_cpu();
  };
  for (size_t owner = 0; owner < records.size(); ++owner) {
    const int owner_rank = static_cast<int>(owner);
    const absl::StatusOr<DeviceMaps> maps = ReadRecord(records[owner], names);
    if (!maps.ok()) {
      return WithRank(
          absl::InvalidArgumentError(absl::StrCat(
              routes.NameOf(owner_rank), " ", maps.status().message())),
          owner_rank);
    }
    for (const auto& [worker, devices] : *maps) {
      const int target = static_cast<int>(
          std::find(names.begin(), names.end(), worker) - names.begin());
      for (const auto& [from, to] : devices) {
        if (owner_rank == rank) {
          routes.arguments_[target][from] = to;
          uses(from);
        }
        if (worker == own_name) {
          routes.results_[owner_rank][to] = from;
          uses(to);
        }
      }
    }
  }
  return routes;
}

absl::StatusOr<Device> DeviceRoutes::OfArgument(int callee,
                                                const Device& device) const {
  if (const Device* const to = Find(arguments_, callee, device)) return *to;
  if (device.is_cpu()) return Device();
  if (device.is_meta()) return NoData();
  return absl::FailedPreconditionError(
      absl::StrCat(NameOf(rank_), " has no device map from ", device.ToString(),
                   " to ", NameOf(callee),
                   "; set RpcOptions::device_maps, or pass a copy on the "
                   "CPU, To(\"cpu\")"));
}

absl::StatusOr<Device> DeviceRoutes::OfResult(int caller,
                                              const Device& device) const {
  if (const Device* const to = Find(results_, caller, device)) return *to;
  if (device.is_cpu()) return Device();
  if (device.is_meta()) return NoData();
  return absl::FailedPreconditionError(
      absl::StrCat(NameOf(caller), ", the caller, has no device map to ",
                   device.ToString(), " of ", NameOf(rank_),
                   "; set RpcOptions::device_maps there, or return a "
                   "copy on the CPU, To(\"cpu\")"));
}

std::string DeviceRoutes::NameOf(int rank) const {
  if (static_cast<size_t>(rank) >= names_.size()) {
    return absl::StrCat("rank ", rank);
  }
  return absl::StrCat(names_[static_cast<size_t>(rank)], " (rank ", rank, ")");
}

}  // namespace sherd::internal
