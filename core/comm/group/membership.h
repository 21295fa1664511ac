#ifndef SHERD_CORE_COMM_GROUP_MEMBERSHIP_H_
#define SHERD_CORE_COMM_GROUP_MEMBERSHIP_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/tensor/device.h"

namespace sherd::internal {

// The ranks of a group, as one of them knows them: by number from the
// beginning, by process, host and device once they have exchanged these.
//
// Threads. Changed while the group is joined; constant afterwards.
class Membership {
 public:
  // `rank` is -1 for a process that is not a member. `world_ranks`: the place
  // of each rank in the job, which has `world_size` of them; empty: the group
  // is the job.
  Membership(std::string name, int rank, int size, std::vector<int> world_ranks,
             int world_size);

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  bool is_member() const { return rank_ >= 0; }
  absl::Span<const int> world_ranks() const { return world_ranks_; }
  int world_size() const { return world_size_; }

  // Sets the process of each rank, as DescribeOwnProcess() returned it there.
  void SetProcesses(std::vector<std::string> processes);
  const std::string& process(int rank) const { return processes_[rank]; }
  absl::Span<const std::string> processes() const { return processes_; }
  // The other ranks whose process this one can see, ascending.
  absl::Span<const int> neighbors() const { return neighbors_; }
  // True if all ranks run on this host, in one PID namespace.
  bool one_host() const { return one_host_; }
  // Entry r is the number of the machine of rank r: 0 for that of rank 0, and
  // so on in the order in which ranks name new ones. Empty before
  // SetProcesses.
  absl::Span<const int> host_of_rank() const { return host_of_rank_; }

  // Empty if the group has no device part.
  void SetDevices(std::vector<Device> devices) {
    devices_ = std::move(devices);
  }
  absl::Span<const Device> devices() const { return devices_; }

  // Returns `status` of an operation of this rank with group, rank, operation
  // and, unless it is 0, its number, as text and as ErrorInfo.
  absl::Status Describe(absl::string_view operation, uint64_t sequence,
                        absl::Status status) const;
  // Returns `status` with the job rank of the rank that it names added.
  absl::Status WithJobRank(absl::Status status) const;

  // A point at which tests make this rank fail.
  absl::Status MaybeInjectFault(FaultPoint point,
                                absl::string_view subject) const;

 private:
  const std::string name_;
  const int rank_;
  const int size_;
  const int world_size_;
  const std::vector<int> world_ranks_;
  std::vector<std::string> processes_;
  std::vector<int> neighbors_;
  bool one_host_ = true;
  std::vector<int> host_of_rank_;
  std::vector<Device> devices_;
};

// Number of the process that DescribeOwnProcess() described; "unknown" if the
// text is malformed.
std::string ProcessNumber(const std::string& description);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_GROUP_MEMBERSHIP_H_
