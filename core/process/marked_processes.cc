#include "sherd/core/process/marked_processes.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/polling_pause.h"
#include "sherd/core/process/process_status.h"

namespace sherd {
namespace {

// For a process that does not come to the program that it begins to run, since
// the program's file cannot be read at the moment, say.
constexpr absl::Duration kExecTime = absl::Seconds(1);

// Empty also if it may not be read.
std::string ReadEnvironment(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/environ");
  std::string environment = ReadProcFile(path);
  const Deadline deadline = Deadline::After(kExecTime);
  internal::PollingPause pause(10, absl::Milliseconds(1));
  while (environment.empty() && !deadline.HasPassed()) {
    const std::optional<ProcessStat> stat = ReadProcessStat(pid);
    if (!stat || !stat->has_environment) break;
    pause();
    environment = ReadProcFile(path);
  }
  return environment;
}

bool HasEntry(pid_t pid, const std::string& entry) {
  const std::string environment = ReadEnvironment(pid);
  for (const absl::string_view found : absl::StrSplit(environment, '\0')) {
    if (found == entry) return true;
  }
  return false;
}

}  // namespace

std::vector<pid_t> FindMarkedProcesses(const std::string& entry) {
  std::vector<pid_t> pids;
  DIR* const proc = opendir("/proc");
  if (proc == nullptr) return pids;
  while (const dirent* const item = readdir(proc)) {
    pid_t pid;
    if (!absl::SimpleAtoi(item->d_name, &pid) || pid == getpid()) continue;
    if (HasEntry(pid, entry)) pids.push_back(pid);
  }
  closedir(proc);
  return pids;
}

void KillMarkedProcesses(const std::string& entry) {
  // A killed process shows no environment any more. The bound is for a process
  // that cannot die at the moment.
  bool none_before = false;
  for (int round = 0; round < 100; ++round) {
    const std::vector<pid_t> pids = FindMarkedProcesses(entry);
    // A process may have started one more after the list of all was read, and
    // have ended before it was looked at.
    if (pids.empty() && none_before) return;
    none_before = pids.empty();
    for (pid_t pid : pids) kill(pid, SIGKILL);
  }
}

}  // namespace sherd
