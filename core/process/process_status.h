#ifndef SHERD_CORE_PROCESS_PROCESS_STATUS_H_
#define SHERD_CORE_PROCESS_PROCESS_STATUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sherd {

// Information of the kernel in /proc about the processes of this PID namespace.
//
// Threads. All functions may be called from any thread.
// Cost. A few system calls for each file.

// kTraced: held by a debugger, or for a moment by a leak checker or a program
// that dumps its core. kStopped: by a signal such as SIGSTOP; none of its
// threads runs. kEnded: even if it has not been waited for yet.
enum class ProcessState { kUnknown, kRunning, kStopped, kTraced, kEnded };

struct ProcessStat {
  ProcessState state = ProcessState::kUnknown;
  // In clock ticks since the boot. Distinguishes a process from a later one
  // with the same number.
  uint64_t start_time = 0;
  // Its environment is not empty. While it begins to run a program (execve), it
  // has one although its file for that reads as empty. False too if it ends, or
  // belongs to the kernel, or this process may not look into it.
  bool has_environment = false;
};

// Nullopt if the process does not exist, is hidden, or there is no /proc.
std::optional<ProcessStat> ReadProcessStat(int64_t pid);

// The same from the text of /proc/PID/stat.
std::optional<ProcessStat> ParseProcessStat(std::string_view stat);

struct ProcessStatus {
  ProcessState state = ProcessState::kUnknown;
  // Bit S - 1 is set if there is a handler for signal S.
  uint64_t caught_signals = 0;

  bool Catches(int signal) const {
    return (caught_signals >> (signal - 1) & 1) != 0;
  }
};

// As ReadProcessStat.
std::optional<ProcessStatus> ReadProcessStatus(int64_t pid);

// The same from the text of /proc/PID/status.
std::optional<ProcessStatus> ParseProcessStatus(std::string_view status);

// Whether the process has a thread of that name.
bool HasThread(int64_t pid, std::string_view name);

// All of a file whose size is not known before it has been read, as those of
// /proc; empty if it cannot be read.
std::string ReadProcFile(const std::string& path);

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_PROCESS_STATUS_H_
