#ifndef SHERD_CORE_PROCESS_CORES_H_
#define SHERD_CORE_PROCESS_CORES_H_

namespace sherd {

// The cores on which the calling thread may run: fewer than the machine has if
// a launcher, or taskset, has bound it. At least 1.
int CountCores();

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_CORES_H_
