#ifndef SHERD_CORE_NET_FRAME_SERVER_H_
#define SHERD_CORE_NET_FRAME_SERVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/net/event_loop.h"
#include "sherd/core/net/frame_connection.h"
#include "sherd/core/net/handshake.h"
#include "sherd/core/net/socket.h"

namespace sherd {

// Listens at an address, accepts connections that pass the handshake, and hands
// over their frames. Others, and those beyond the limit, receive the reason and
// are closed; nothing that one connection sends harms another.
//
// Threads. "Loop thread" as in EventLoop; the others from any thread.
class FrameServer {
 public:
  using ConnectionId = uint64_t;

  struct Options {
    // Numeric; port 0: the system chooses. Or the abstract name of a Unix
    // socket, "@name", without a port: then users other than this process's are
    // refused.
    std::string address;
    int port = 0;
    // The protocol, 1 to 32 characters, and the secret; see handshake.h.
    std::string protocol;
    std::string secret;
    int max_connections = 65536;
    size_t max_frame_bytes = size_t{1} << 20;
    absl::Duration handshake_timeout = absl::Seconds(10);
    // As in FrameConnection::Options. The handshake's frames have no tails.
    absl::Duration frame_timeout = absl::Seconds(60);
    bool has_tails = false;
    uint64_t max_tail_bytes = uint64_t{1} << 40;
    bool pauses_reading = true;
    size_t max_queued_bytes = size_t{256} << 20;
  };

  // Receives the events of connections that passed the handshake, on the loop
  // thread.
  class Handler {
   public:
    virtual ~Handler() = default;
    // Frames can be sent from here on. The other end may know of it before.
    virtual void OnOpened(ConnectionId connection) = 0;
    // Without tails, where it must be overridden: a frame. Its payload is valid
    // during the call.
    virtual void OnFrame(ConnectionId connection, absl::string_view payload);
    // With tails: as FrameConnection's on_head and on_tail.
    virtual absl::StatusOr<std::vector<absl::Span<std::byte>>> OnHead(
        ConnectionId connection, absl::string_view head, uint64_t tail_bytes);
    virtual void OnTail(ConnectionId) {}
    // The last call for it.
    virtual void OnClosed(ConnectionId connection, const absl::Status& why) = 0;
  };

  // Binds and listens, but accepts no connection before Open. Errors as
  // Listen(). The handler and the loop outlive the server; it is destroyed on
  // the loop thread, or when that no longer runs.
  static absl::StatusOr<std::unique_ptr<FrameServer>> Create(
      EventLoop* loop, const Options& options, Handler* handler);

  // Any thread, once. From now on the handler is called.
  void Open();

  const SocketAddress& address() const { return address_; }
  // Open connections that passed the handshake; counted before the other end
  // knows.
  int num_connections() const { return num_connections_; }

  // Loop thread. A connection that passed the handshake, to send on it from any
  // thread; null before OnOpened, and after it closed.
  std::shared_ptr<FrameConnection> connection(ConnectionId connection) const;
  // Loop thread. Queues a frame on one of connection(); one that has closed is
  // not an error.
  void Send(ConnectionId connection, absl::string_view payload);
  // Loop thread.
  void Close(ConnectionId connection, const absl::Status& why);
  // Loop thread. Frees the port, and turns away who has not been let in.
  void StopAccepting();
  // Loop thread. Stops accepting and closes all; no more calls of the handler.
  void CloseAll(const absl::Status& why);

 private:
  enum class Stage { kHello, kProof, kOpen, kRefused };
  struct Peer {
    Peer(std::shared_ptr<FrameConnection> c, ServerHandshake h)
        : connection(std::move(c)), handshake(std::move(h)) {}
    std::shared_ptr<FrameConnection> connection;
    ServerHandshake handshake;
    Stage stage = Stage::kHello;
    EventLoop::TimerId timer;
  };

  FrameServer(EventLoop* loop, const Options& options, Handler* handler,
              UniqueFd listener, const SocketAddress& address);

  void WatchListener();
  void AcceptAll();
  void Admit(UniqueFd socket);
  FrameConnection::Events EventsOf(ConnectionId id);
  void MakeRoom();
  void OnFrame(ConnectionId id, absl::string_view payload);
  void OnHandshakeFrame(ConnectionId id, Peer& peer, absl::string_view payload);
  void OnClosed(ConnectionId id, const absl::Status& why);
  void Refuse(Peer& peer, const absl::Status& why);

  EventLoop* const loop_;
  const Options options_;
  Handler* const handler_;
  const SocketAddress address_;
  std::atomic<int> num_connections_{0};

  // Of the loop thread only.
  UniqueFd listener_;
  std::optional<EventLoop::TimerId> retry_timer_;
  std::map<ConnectionId, Peer> peers_;
  // Those of peers_ that have not passed the handshake, the oldest first.
  std::set<ConnectionId> strangers_;
  ConnectionId next_id_ = 1;
};

}  // namespace sherd

#endif  // SHERD_CORE_NET_FRAME_SERVER_H_
