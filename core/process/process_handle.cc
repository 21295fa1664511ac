#include "sherd/core/process/process_handle.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

// glibc 2.36 declares pidfd_open() in a way that C++ cannot link.
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace sherd {
namespace {

// Descriptors of processes that this one watches. Their number is that of the
// processes, not of the handles.
struct Watched {
  ProcessIdentity identity;
  UniqueFd fd;
  int users;
};

struct WatchList {
  std::mutex mutex;
  std::vector<Watched> entries;

  // Never destroyed: handles may outlive main.
  static WatchList& Get() {
    static auto* const list = new WatchList;
    return *list;
  }
};

}  // namespace

UniqueFd OpenPidFd(int64_t pid) {
  return UniqueFd(
      static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
}

void ProcessHandle::Watch(const ProcessIdentity& identity) {
  identity_ = identity;
  WatchList& list = WatchList::Get();
  std::lock_guard<std::mutex> lock(list.mutex);
  const auto known =
      std::find_if(list.entries.begin(), list.entries.end(),
                   [&](const Watched& w) { return w.identity == identity; });
  if (known != list.entries.end()) {
    ++known->users;
    fd_ = known->fd.get();
    return;
  }
  UniqueFd fd = OpenPidFd(identity.pid);
  if (!fd.is_open()) return;
  // Looked at once the descriptor is there: the number may be another's.
  const uint64_t found = ProcessIdentity::Of(identity.pid).start_time;
  if (identity.start_time != 0 && found != 0 && found != identity.start_time) {
    return;
  }
  fd_ = fd.get();
  list.entries.push_back({identity, std::move(fd), 1});
}

ProcessHandle::~ProcessHandle() {
  if (fd_ < 0) return;
  WatchList& list = WatchList::Get();
  std::lock_guard<std::mutex> lock(list.mutex);
  const auto known =
      std::find_if(list.entries.begin(), list.entries.end(),
                   [&](const Watched& w) { return w.fd.get() == fd_; });
  if (--known->users == 0) list.entries.erase(known);
}

bool ProcessHandle::HasEnded() const {
  if (fd_ >= 0) {
    pollfd query = {fd_, POLLIN, 0};
    return poll(&query, 1, 0) > 0;
  }
  return StateOf(identity_) == ProcessState::kEnded;
}

}  // namespace sherd
