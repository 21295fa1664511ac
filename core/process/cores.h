#ifndef SHERD_CORE_PROCESS_CORES_H_
#define SHERD_CORE_PROCESS_CORES_H_

#include <cstdint>
#include <vector>

namespace sherd {

// The cores on which the calling thread may run: fewer than the machine has if
// a launcher, or taskset, has bound it. At least 1.
int CountCores();

// How many of these cores are left to the calling process if `others`,
// processes of this PID namespace, run beside it, and each core divides its
// time evenly among those that may use it: 2 of 8 where each of 4 processes may
// use all, or has been bound to 2 of its own. One that cannot be seen counts as
// one that may use what this one may. More than 0.
double ShareOfCores(const std::vector<int64_t>& others);

namespace internal {

// The same where `own`, and those in each list of `others`, are numbers of
// cores.
double ShareOfCores(const std::vector<int>& own,
                    const std::vector<std::vector<int>>& others);

}  // namespace internal

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_CORES_H_
