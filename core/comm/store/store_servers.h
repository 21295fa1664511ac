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

// The servers that this process runs as rank 0. They stay up until it ends, so
// that ranks which leave after rank 0 still find them, and a later session of
// the group too. A process whose rank 0 left, or whose Init failed, waits at
// its end for up to kExitGrace until the other ranks have done the same or know
// why.
//
// Threads. All methods may be called from any thread.
class StoreServers {
 public:
  static StoreServers& Global();

  // The port of the server that runs under `name` and has the same secret,
  // which is started if there is none. Errors as TcpStoreServer::Start.
  absl::StatusOr<int> FindOrStart(const std::string& name,
                                  const TcpStoreServer::Options& options);

  // `client` is this process's own, of the server at `port`: nobody waits for
  // it.
  void NoteOwnClient(int port, const std::shared_ptr<Store>& client);

  // Rank 0 left in good order or gave up, so the others are about to.
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
