#ifndef SHERD_CORE_COMM_STORE_TCP_STORE_H_
#define SHERD_CORE_COMM_STORE_TCP_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/store/base_store.h"

namespace sherd {

// The server of a store, in the process of one rank or in one of its own. It
// keeps keys and values in memory and serves any number of TcpStores, from
// other hosts or from threads of this process.
//
// Threads. One, its event loop. All methods may be called from any thread.
class TcpStoreServer {
 public:
  struct Options {
    // Numeric, IPv4 or IPv6; "0.0.0.0" or "::" for all interfaces.
    std::string address = "127.0.0.1";
    // 0: the system chooses; see port().
    int port = 0;
    // Shared by all ranks; empty: whoever can connect is let in. Never sent.
    std::string secret;
    // At most so many connections at once; further ones are told so.
    int max_clients = 65536;
    // The most bytes that all keys and values may have together.
    int64_t max_bytes = int64_t{1} << 30;
    // A connection that has not said by then who it is gets closed.
    absl::Duration handshake_timeout = absl::Seconds(10);
    // How long the destructor waits for the clients to say goodbye.
    absl::Duration linger = absl::Seconds(5);
  };

  // Listens and serves.
  //   kInvalidArgument    The address is not numeric or the port not one.
  //   kUnavailable        Somebody listens there already, or the address is
  //                       not of this host; the message names it.
  //   kPermissionDenied   The port is reserved for the system.
  //   kResourceExhausted  No descriptors left.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> Start(
      const Options& options);

  // As Shutdown with a deadline after `linger`.
  ~TcpStoreServer();

  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  int port() const;
  // "127.0.0.1:29500", "[::1]:29500"
  const std::string& address() const;
  // Connections that are open and let in now.
  int num_clients() const;

  // Lets nobody in any more, goes on serving those who are until the last has
  // left, and ends. Clients in this process have to be destroyed first, or by
  // another thread. Later calls return at once.
  //   kDeadlineExceeded  Some are still connected, how many; the server has
  //                      ended, and they find it gone.
  absl::Status Shutdown(Deadline deadline);

 private:
  class Impl;

  explicit TcpStoreServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

// A store at a TcpStoreServer.
//
// Threads. One of its own, which receives. Calls of many threads travel on one
// connection side by side: one that waits keeps no other from being answered.
//
// Errors. Every message names the operation, the key, the time that passed and
// the server's address.
//   kUnavailable        The server is gone, or closed the connection: at once
//                       for all calls that wait, and for all later ones.
//   kDeadlineExceeded   The server says that keys are missing; or it has not
//                       answered `call_timeout` after sending, or after the
//                       deadline of a call that has one, and then a write may
//                       or may not have been done.
//   kResourceExhausted  The server is full, or refuses further clients.
// An operation that the server refuses leaves the connection as it is.
//
// Cost. One round trip per call.
class TcpStore final : public internal::BaseStore {
 public:
  struct Options {
    // Numeric, or a name for the resolver of the system, which does not look at
    // deadlines.
    std::string host;
    int port = 0;
    std::string secret;
    // For connecting, which is tried again while nobody listens.
    Deadline deadline = Deadline::After(absl::Seconds(30));
    // The longest that a server which is still connected may leave a call
    // without an answer, in addition to the call's own deadline.
    absl::Duration call_timeout = absl::Seconds(5);
  };

  //   kInvalidArgument     The port is none, or the host has no address.
  //   kUnavailable         Nobody listens there until the deadline.
  //   kDeadlineExceeded    Somebody listens and does not answer.
  //   kPermissionDenied    The server has another secret, or one of the two has
  //                        none. The server need not be ours: it learned no
  //                        secret.
  //   kFailedPrecondition  What listens is no store, or of another version.
  //   kResourceExhausted   It has as many clients as it may have.
  static absl::StatusOr<std::shared_ptr<TcpStore>> Connect(
      const Options& options);

  // Says goodbye. Calls of other threads must have ended.
  ~TcpStore() override;

 private:
  absl::Status DoSet(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> DoGet(absl::string_view key,
                                    Deadline deadline) override;
  absl::StatusOr<int64_t> DoAdd(absl::string_view key, int64_t amount) override;
  absl::StatusOr<std::string> DoCompareSet(absl::string_view key,
                                           absl::string_view expected,
                                           absl::string_view desired) override;
  absl::StatusOr<bool> DoDelete(absl::string_view key) override;
  absl::StatusOr<int64_t> DoDeletePrefix(absl::string_view prefix) override;
  absl::Status DoRetire(absl::string_view prefix, int members) override;
  absl::Status DoWait(absl::Span<const std::string> keys,
                      Deadline deadline) override;
  absl::StatusOr<std::vector<std::string>> DoMultiGet(
      absl::Span<const std::string> keys, Deadline deadline) override;
  absl::StatusOr<bool> DoContains(absl::string_view key) override;

  class Impl;

  explicit TcpStore(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_STORE_TCP_STORE_H_
