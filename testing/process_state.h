#ifndef SHERD_TESTING_PROCESS_STATE_H_
#define SHERD_TESTING_PROCESS_STATE_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace sherd::testing::internal {

// What the kernel says of a process.
struct ProcessState {
  // By a signal such as SIGSTOP: none of its threads runs.
  bool is_stopped = false;
  // Bit S - 1 is set if there is a handler for signal S.
  uint64_t caught_signals = 0;

  bool Catches(int signal) const {
    return (caught_signals >> (signal - 1) & 1) != 0;
  }
};

// Nothing if there is no such process, or no /proc.
std::optional<ProcessState> ReadProcessState(pid_t pid);

// The same from the text of /proc/PID/status.
std::optional<ProcessState> ParseProcessStatus(absl::string_view status);

// Whether the process has a thread of that name.
bool HasThread(pid_t pid, absl::string_view name);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_PROCESS_STATE_H_
