#ifndef SHERD_RPC_LINK_RECEPTION_H_
#define SHERD_RPC_LINK_RECEPTION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/net/event_loop.h"
#include "sherd/core/net/frame_server.h"
#include "sherd/rpc/link/link_channel.h"
#include "sherd/rpc/rpc.pb.h"

namespace sherd::internal {

// A socket to which other workers connect. After the handshake a worker says
// hello, and its connection goes to the channel that wants it; others are
// rejected with the reason. No guest harms the rest.
//
// Threads. As FrameServer.
class Reception final : private FrameServer::Handler {
 public:
  class Host {
   public:
    virtual ~Host() = default;
    // Answers a hello: returns the channel that takes the connection, or null.
    // On the loop thread.
    virtual LinkChannel* OnHello(const rpc::LinkMessage::Hello& hello,
                                 rpc::LinkMessage::HelloReply* reply) = 0;
  };

  // Listens, but accepts no connection before Open. Errors as
  // FrameServer::Create. Loop and host outlive it; destroyed after the loop.
  static absl::StatusOr<std::unique_ptr<Reception>> Create(
      EventLoop* loop, const FrameServer::Options& options, Host* host);

  void Open() { server_->Open(); }
  const SocketAddress& address() const { return server_->address(); }

  // Loop thread.
  void StopAccepting() { server_->StopAccepting(); }
  // Loop thread. Makes no more calls.
  void CloseAll(const absl::Status& why);

 private:
  struct Guest {
    std::shared_ptr<FrameConnection> connection;
    // Null before its hello.
    LinkChannel* channel = nullptr;
    EventLoop::TimerId timer;
  };

  Reception(EventLoop* loop, Host* host) : loop_(loop), host_(host) {}

  void OnOpened(FrameServer::ConnectionId id) override;
  absl::StatusOr<std::vector<absl::Span<std::byte>>> OnHead(
      FrameServer::ConnectionId id, absl::string_view head,
      uint64_t tail_bytes) override;
  void OnTail(FrameServer::ConnectionId id) override;
  void OnClosed(FrameServer::ConnectionId id, const absl::Status& why) override;

  absl::Status Receive(Guest& guest, absl::string_view head,
                       uint64_t tail_bytes);

  EventLoop* const loop_;
  Host* const host_;
  std::unique_ptr<FrameServer> server_;
  // Of the loop thread.
  std::map<FrameServer::ConnectionId, Guest> guests_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_LINK_RECEPTION_H_
