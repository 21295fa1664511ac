#ifndef SHERD_CORE_PROCESS_MARKED_PROCESSES_H_
#define SHERD_CORE_PROCESS_MARKED_PROCESSES_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace sherd {

// Processes of this user, other than this one, whose environment at their start
// had the entry `entry` ("NAME=value"): they descend from the process that set
// it, in any session or process group. Empty where /proc is missing.
std::vector<pid_t> FindMarkedProcesses(const std::string& entry);

// Kills them, and processes that they start meanwhile.
void KillMarkedProcesses(const std::string& entry);

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_MARKED_PROCESSES_H_
