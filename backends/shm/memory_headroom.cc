#include "sherd/backends/shm/memory_headroom.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace sherd::internal {
namespace {

// Empty if there is no such file. Those of /proc and /sys are short.
std::string ReadShortFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  char text[8192];
  const ssize_t length = read(fd, text, sizeof(text));
  close(fd);
  return length > 0 ? std::string(text, static_cast<size_t>(length)) : "";
}

// The number behind `key` where it begins a line.
uint64_t FindNumber(const std::string& text, const char* key,
                    uint64_t otherwise) {
  const size_t length = std::strlen(key);
  for (size_t at = text.find(key); at != std::string::npos;
       at = text.find(key, at + 1)) {
    if (at != 0 && text[at - 1] != '\n') continue;
    return std::strtoull(text.c_str() + at + length, nullptr, 10);
  }
  return otherwise;
}

// The files of the two versions of control groups.
struct Hierarchy {
  // In /proc/self/cgroup, before the group's path.
  const char* controller;
  const char* directory;
  const char* limit;
  const char* used;
  const char* cached;
};

constexpr Hierarchy kHierarchies[] = {
    {"0::", "/sys/fs/cgroup", "/memory.max", "/memory.current",
     "inactive_file "},
    {":memory:", "/sys/fs/cgroup/memory", "/memory.limit_in_bytes",
     "/memory.usage_in_bytes", "total_inactive_file "},
};

uint64_t HeadroomOfGroup(const Hierarchy& hierarchy, const std::string& group) {
  const std::string directory = hierarchy.directory + group;
  const std::string limit = ReadShortFile(directory + hierarchy.limit);
  // "max", or there is no such group.
  if (limit.empty() || limit[0] < '0' || limit[0] > '9') return UINT64_MAX;
  const uint64_t most = std::strtoull(limit.c_str(), nullptr, 10);
  const uint64_t used =
      FindNumber(ReadShortFile(directory + hierarchy.used), "", 0);
  const uint64_t cached = FindNumber(ReadShortFile(directory + "/memory.stat"),
                                     hierarchy.cached, 0);
  const uint64_t held = used - std::min(used, cached);
  return most - std::min(most, held);
}

// Of the process's control group and of those above it.
uint64_t HeadroomOfGroups(const Hierarchy& hierarchy) {
  const std::string groups = ReadShortFile("/proc/self/cgroup");
  const size_t found = groups.find(hierarchy.controller);
  if (found == std::string::npos) return UINT64_MAX;
  const size_t begin = found + std::strlen(hierarchy.controller);
  std::string group = groups.substr(begin, groups.find('\n', begin) - begin);
  uint64_t least = UINT64_MAX;
  for (;;) {
    least = std::min(least, HeadroomOfGroup(hierarchy, group));
    if (group.empty()) return least;
    const size_t parent = group.rfind('/');
    group.resize(parent == std::string::npos ? 0 : parent);
  }
}

}  // namespace

uint64_t MachineMemory() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  return pages <= 0 ? UINT64_MAX
                    : static_cast<uint64_t>(pages) *
                          static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t MemoryHeadroom() {
  const uint64_t kilobytes = FindNumber(ReadShortFile("/proc/meminfo"),
                                        "MemAvailable:", UINT64_MAX >> 10);
  uint64_t least = kilobytes << 10;
  for (const Hierarchy& hierarchy : kHierarchies) {
    least = std::min(least, HeadroomOfGroups(hierarchy));
  }
  return least;
}

}  // namespace sherd::internal
