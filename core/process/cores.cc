#include "sherd/core/process/cores.h"

#include <sched.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

namespace sherd {
namespace {

// Those on which a process may run, or, of process 0, the calling thread. Empty
// if the system does not say: it does not know the process, or has more cores
// than the set has room for.
std::vector<int> CoresOf(int64_t pid) {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(static_cast<pid_t>(pid), sizeof(set), &set) != 0) {
    return cores;
  }
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

}  // namespace

int CountCores() {
  const std::vector<int> cores = CoresOf(0);
  const int count = cores.empty()
                        ? static_cast<int>(std::thread::hardware_concurrency())
                        : static_cast<int>(cores.size());
  return std::max(count, 1);
}

double ShareOfCores(const std::vector<int64_t>& others) {
  const std::vector<int> own = CoresOf(0);
  if (own.empty()) {
    return static_cast<double>(CountCores()) /
           static_cast<double>(others.size() + 1);
  }
  std::vector<std::vector<int>> of_others;
  of_others.reserve(others.size());
  for (const int64_t pid : others) {
    std::vector<int> cores = pid > 0 ? CoresOf(pid) : std::vector<int>();
    if (cores.empty()) cores = own;
    of_others.push_back(std::move(cores));
  }
  return internal::ShareOfCores(own, of_others);
}

namespace internal {

double ShareOfCores(const std::vector<int>& own,
                    const std::vector<std::vector<int>>& others) {
  std::map<int, int> users;
  for (const int core : own) users[core] = 1;
  for (const std::vector<int>& cores : others) {
    for (const int core : cores) {
      const auto it = users.find(core);
      if (it != users.end()) ++it->second;
    }
  }
  double share = 0;
  for (const auto& [core, count] : users) share += 1.0 / count;
  return share;
}

}  // namespace internal
}  // namespace sherd
