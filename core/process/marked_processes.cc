#include "sherd/core/process/marked_processes.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

bool HasEntry(pid_t pid, const std::string& entry) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/environ"), std::ios::binary);
  for (std::string found; std::getline(file, found, '\0');) {
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
  for (int round = 0; round < 100; ++round) {
    const std::vector<pid_t> pids = FindMarkedProcesses(entry);
    if (pids.empty()) return;
    for (pid_t pid : pids) kill(pid, SIGKILL);
  }
}

}  // namespace sherd
