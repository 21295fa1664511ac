#include "sherd/core/comm/store/store_servers.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {

StoreServers& StoreServers::Global() {
  // Leaked: threads may use a store among static destructors.
  static StoreServers* const servers = new StoreServers;
  return *servers;
}

absl::StatusOr<int> StoreServers::FindOrStart(
    const std::string& name, const TcpStoreServer::Options& options) {
  absl::MutexLock lock(&mutex_);
  Entry& entry = servers_[absl::StrCat(name, "\n", options.secret)];
  if (entry.server == nullptr) {
    SHERD_ASSIGN_OR_RETURN(entry.server, TcpStoreServer::Start(options));
    static const int registered = std::atexit([] { Global().Linger(); });
    (void)registered;
  }
  return entry.server->port();
}

void StoreServers::NoteOwnClient(int port,
                                 const std::shared_ptr<Store>& client) {
  absl::MutexLock lock(&mutex_);
  for (auto& [name, entry] : servers_) {
    if (entry.server == nullptr || entry.server->port() != port) continue;
    entry.own_clients.push_back(client);
    // Clients of earlier sessions.
    entry.own_clients.erase(
        std::remove_if(entry.own_clients.begin(), entry.own_clients.end(),
                       [](const auto& own) { return own.expired(); }),
        entry.own_clients.end());
  }
}

void StoreServers::NoteLeaving() {
  absl::MutexLock lock(&mutex_);
  left_ = true;
}

void StoreServers::Linger() {
  const Deadline deadline = Deadline::After(kExitGrace);
  absl::MutexLock lock(&mutex_);
  if (!left_) return;
  for (auto& [name, entry] : servers_) {
    if (entry.server == nullptr) continue;
    const auto own =
        std::count_if(entry.own_clients.begin(), entry.own_clients.end(),
                      [](const auto& client) { return !client.expired(); });
    while (entry.server->num_clients() > own && !deadline.HasPassed()) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
}

}  // namespace sherd::internal
