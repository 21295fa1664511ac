#include "sherd/core/process/cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace sherd {

int CountCores() {
  cpu_set_t cores;
  // Fails on machines with more cores than the set has room for.
  const int count = sched_getaffinity(0, sizeof(cores), &cores) == 0
                        ? CPU_COUNT(&cores)
                        : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(count, 1);
}

}  // namespace sherd
