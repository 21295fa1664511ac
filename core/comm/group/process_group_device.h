#ifndef SHERD_CORE_COMM_GROUP_PROCESS_GROUP_DEVICE_H_
#define SHERD_CORE_COMM_GROUP_PROCESS_GROUP_DEVICE_H_

// Private parts of ProcessGroup that have to do with its device part.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sherd/core/comm/channel/device_group.h"
#include "sherd/core/comm/process_group.h"

namespace sherd {

// Where a group's communicator on devices comes from: made anew unless one of
// the others is there, and works on all ranks.
struct ProcessGroup::DeviceOrigin {
  // From splitting the parent's, and the store that it was given.
  std::shared_ptr<Store> store;
  std::unique_ptr<Communicator> split;
  // The parent, which failed, and its ranks that are not in the new group.
  std::shared_ptr<internal::DeviceGroup> parent;
  std::vector<int> excluded;
  // That of `split`.
  Device device;

  DeviceOrigin() = default;
  DeviceOrigin(const DeviceOrigin&) = delete;
  DeviceOrigin& operator=(const DeviceOrigin&) = delete;
  ~DeviceOrigin();
};

// As ranks tell each other.
struct ProcessGroup::DeviceFacts {
  enum class Source { kAnew = 0, kSplit = 1, kShrink = 2 };

  // OK, or why this rank cannot take part.
  absl::Status status;
  Source source = Source::kAnew;
  std::string library_version;
  // Number of the rank's device.
  int device = -1;
  // DeviceProperties::bus_id.
  std::string device_id;

  std::string ToString() const;
  static DeviceFacts Parse(absl::string_view text);
};

class ProcessGroup::DeviceOwner final : public internal::DeviceGroup::Owner {
 public:
  explicit DeviceOwner(ProcessGroup& group) : group_(group) {}

  absl::Status Trouble() override;
  absl::Status LostRank(const Collective& call) override;
  absl::Status Late(const Collective& call) override;
  absl::Status Fail(const Collective& call, absl::Status symptom) override;
  void Failed(const internal::FlightTicket& ticket,
              const absl::Status& status) override;
  void RunAside(std::function<void()> task) override;

 private:
  ProcessGroup& group_;
  // How often a rank on another host has been looked for.
  int looks_ = 0;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_GROUP_PROCESS_GROUP_DEVICE_H_
