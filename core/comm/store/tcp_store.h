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

// The server of a store, in the process of one rank or in a process of its own.
// It keeps keys and values in memory and serves any number of TcpStores, from
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
    // Shared by all ranks; empty: every client that can connect is accepted.
    // Never sent.
    std::string secret;
    // The most connections at once; further clients are refused with an error.
    int max_clients = 65536;
    // The most bytes that all keys and values may have together.
    int64_t max_bytes = int64_t{1} << 30;
    // A connection that has not completed the handshake by then is closed.
    absl::Duration handshake_timeout = absl::Seconds(10);
    // How long the destructor waits for the clients to disconnect.
    absl::Duration linger = absl::Seconds(5);
  };

  // Listens and serves.
  //   kInvalidArgument    The address is not numeric or the port is invalid.
  //   kUnavailable        The address is in use, or does not belong to this
  //                       host; the message names it.
  //   kPermissionDenied   The port is reserved for the system.
  //   kResourceExhausted  No descriptor is left.
  static absl::StatusOr<std::unique_ptr<TcpStoreServer>> Start(
      const Options& options);

  // As Shutdown with a deadline after `linger`.
  ~TcpStoreServer();

  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  int port() const;
  // "127.0.0.1:29500", "[::1]:29500"
  const std::string& address() const;
  // Connections that are open and accepted now.
  int num_clients() const;

  // Accepts no more clients, serves the connected ones until the last has left,
  // and ends. Clients in this process must be destroyed first, or by another
  // thread. Later calls return at once.
  //   kDeadlineExceeded  Some clients are still connected; the message has
  //                      their number. The server has ended, and their calls
  //                      fail.
  absl::Status Shutdown(Deadline deadline);

 private:
  class Impl;

  explicit TcpStoreServer(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

// A store at a TcpStoreServer.
//
// Threads. One of its own, which receives. Calls of many threads travel on one
// connection concurrently: a waiting call does not block the others.
//
// Errors. Every message names the operation, the key, the time that passed and
// the server's address.
//   kUnavailable        The server has ended, or closed the connection:
//                       returned at once by all waiting and all later calls.
//   kDeadlineExceeded   The server reports that keys are missing; or it has not
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
    // Numeric, or a name for the system's resolver, which ignores deadlines.
    std::string host;
    int port = 0;
    std::string secret;
    // For connecting, which is retried while no server listens.
    Deadline deadline = Deadline::After(absl::Seconds(30));
    // The longest that a server which is still connected may leave a call
    // without an answer, in addition to the call's own deadline.
    absl::Duration call_timeout = absl::Seconds(5);
  };

  //   kInvalidArgument     The port is invalid, or the host has no address.
  //   kUnavailable         No server listens there until the deadline.
  //   kDeadlineExceeded    A server listens and does not answer.
  //   kPermissionDenied    The server has another secret, or one side has none.
  //                        The secret was not disclosed, even if the server is
  //                        a foreign one.
  //   kFailedPrecondition  The server is not a store, or has another version.
  //   kResourceExhausted   The server has reached its limit of clients.
  static absl::StatusOr<std::shared_ptr<TcpStore>> Connect(
      const Options& options);

  // Disconnects. Calls of other threads must have ended.
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
