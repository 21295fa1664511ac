#include "sherd/serialization/checkpoint/host_share.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "sherd/core/process/cores.h"
#include "sherd/core/process/process_identity.h"

namespace sherd {

int MostRanksOnHost(const ProcessGroup& group) {
  std::map<int, int> ranks;
  int most = 1;
  for (const int host : group.host_of_rank()) {
    most = std::max(most, ++ranks[host]);
  }
  return most;
}

int ThreadsPerRank(const ProcessGroup& group) {
  const absl::Span<const int> hosts = group.host_of_rank();
  const absl::Span<const std::string> processes = group.processes();
  const auto rank = static_cast<size_t>(group.rank());
  const auto own = ProcessDescription::Parse(processes[rank]);
  std::vector<int64_t> others;
  for (size_t r = 0; r < hosts.size(); ++r) {
    if (r == rank || hosts[r] != hosts[rank]) continue;
    const auto other = ProcessDescription::Parse(processes[r]);
    // Of another container it has a number that means nothing here.
    const bool is_seen = own && other && own->IsBeside(*other);
    others.push_back(is_seen ? other->process.pid : -1);
  }
  // A sum of fractions may be a little less than the number that it is.
  return std::max(static_cast<int>(ShareOfCores(others) + 1e-6), 1);
}

}  // namespace sherd
