#ifndef SHERD_CORE_COMM_STORE_STORE_SERVERS_H_
#define SHERD_CORE_COMM_STORE_STORE_SERVERS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/comm/store/tcp_store.h"

namespace sherd::internal {

// The servers that this process runs as rank 0. They run until it ends, so that
// ranks which leave after rank 0, and a later session of the group, still find
// them. A process whose rank 0 left, or whose Init failed, waits at exit for up
// to kExitGrace until the other ranks have left too or know why.
//
// Threads. All methods may be called from any thread.
class StoreServers {
 public:
  static StoreServers& Global();

  // Returns the port of the server that runs under `name` with the same secret;
  // starts it if it does not run. Errors as TcpStoreServer::Start.
  absl::StatusOr<int> FindOrStart(const std::string& name,
                                  const TcpStoreServer::Options& options);

  // `client` is this process's own client of the server at `port`; the server
  // does not wait for it.
  void NoteOwnClient(int port, const std::shared_ptr<Store>& client);

  // Rank 0 left in good order or gave up, so the others are about to do the
  // same.
  void NoteLeaving();

  static constexpr absl::Duration kExitGrace = absl::Seconds(3);

 private:
  struct Entry {
    std::unique_ptr<TcpStoreServer> server;
    std::vector<std::weak_ptr<Store>> own_clients;
  };

  void Linger();

  absl::Mutex mutex_;
  std::map<std::string, Entry> servers_ ABSL_GUARDED_BY(mutex_);
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_STORE_STORE_SERVERS_H_
