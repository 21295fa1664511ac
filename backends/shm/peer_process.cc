#include "sherd/backends/shm/peer_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace sherd::internal {
namespace {

struct Stat {
  char state = 0;
  uint64_t start_time = 0;
};

// Empty if the process is gone or hidden.
Stat ReadStat(int64_t pid) {
  char path[48];
  std::snprintf(path, sizeof(path), "/proc/%lld/stat",
                static_cast<long long>(pid));
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  char text[1024];
  const ssize_t length = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (length <= 0) return {};
  text[length] = '\0';
  // The name, in parentheses, may hold anything; after it come the state,
  // which is field 3, and in field 22 the start time.
  const char* field = std::strrchr(text, ')');
  if (field == nullptr || field[1] == '\0') return {};
  Stat stat;
  stat.state = field[2];
  for (int number = 2; number < 22 && field != nullptr; ++number) {
    field = std::strchr(field + 1, ' ');
  }
  if (field != nullptr) stat.start_time = std::strtoull(field, nullptr, 10);
  return stat;
}

bool IsAnother(const ProcessIdentity& identity, const Stat& found) {
  return identity.start_time != 0 && found.start_time != 0 &&
         found.start_time != identity.start_time;
}

// Descriptors of processes that this one watches. Their number is that of the
// peers, not of the groups.
struct Watched {
  ProcessIdentity identity;
  int fd;
  int users;
};

struct WatchList {
  std::mutex mutex;
  std::vector<Watched> entries;

  // Never destroyed: groups may outlive main.
  static WatchList& Get() {
    static auto* const list = new WatchList;
    return *list;
  }
};

}  // namespace

ProcessIdentity ProcessIdentity::Own() {
  return {getpid(), ReadStat(getpid()).start_time};
}

void PeerProcess::Watch(const ProcessIdentity& identity) {
  identity_ = identity;
  WatchList& list = WatchList::Get();
  std::lock_guard<std::mutex> lock(list.mutex);
  const auto known =
      std::find_if(list.entries.begin(), list.entries.end(),
                   [&](const Watched& w) { return w.identity == identity; });
  if (known != list.entries.end()) {
    ++known->users;
    fd_ = known->fd;
    return;
  }
  const int fd = static_cast<int>(
      syscall(SYS_pidfd_open, static_cast<pid_t>(identity.pid), 0));
  if (fd < 0) return;
  if (IsAnother(identity, ReadStat(identity.pid))) {
    close(fd);
    return;
  }
  list.entries.push_back({identity, fd, 1});
  fd_ = fd;
}

PeerProcess::~PeerProcess() {
  if (fd_ < 0) return;
  WatchList& list = WatchList::Get();
  std::lock_guard<std::mutex> lock(list.mutex);
  const auto known =
      std::find_if(list.entries.begin(), list.entries.end(),
                   [&](const Watched& w) { return w.fd == fd_; });
  if (--known->users > 0) return;
  close(known->fd);
  list.entries.erase(known);
}

bool PeerProcess::HasEnded() const {
  if (fd_ >= 0) {
    pollfd query = {fd_, POLLIN, 0};
    return poll(&query, 1, 0) > 0;
  }
  if (kill(static_cast<pid_t>(identity_.pid), 0) != 0 && errno == ESRCH) {
    return true;
  }
  const Stat stat = ReadStat(identity_.pid);
  return stat.state == 'Z' || stat.state == 'X' || IsAnother(identity_, stat);
}

}  // namespace sherd::internal
