#include "sherd/serialization/checkpoint/host_share.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "absl/types/span.h"
#include "sherd/core/process/cores.h"

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
  const auto here = std::count(hosts.begin(), hosts.end(),
                               hosts[static_cast<size_t>(group.rank())]);
  return std::max(CountCores() / static_cast<int>(here), 1);
}

}  // namespace sherd
