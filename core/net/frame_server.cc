#include "sherd/core/net/frame_server.h"

#include <errno.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

// Other connections get their turn between so many new ones.
constexpr int kAcceptAtOnce = 64;
// Without descriptors, accepting is tried again after this.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// Beyond its limit a full server keeps so many connections for a moment, to
// send them the reason.
constexpr size_t kSpareConnections = 256;

}  // namespace

void FrameServer::Handler::OnFrame(ConnectionId, absl::string_view) {
  SHERD_CHECK(false) << "a handler of frames without tails needs OnFrame";
}

absl::StatusOr<std::vector<absl::Span<std::byte>>> FrameServer::Handler::OnHead(
    ConnectionId, absl::string_view, uint64_t) {
  return absl::UnimplementedError("frames with tails are not expected here");
}

absl::StatusOr<std::unique_ptr<FrameServer>> FrameServer::Create(
    EventLoop* loop, const Options& options, Handler* handler) {
  SHERD_ASSIGN_OR_RETURN(
      const SocketAddress wanted,
      absl::StartsWith(options.address, "@")
          ? SocketAddress::FromUnixName(options.address)
          : SocketAddress::FromNumeric(options.address, options.port));
  SHERD_ASSIGN_OR_RETURN(UniqueFd listener, Listen(wanted));
  SHERD_ASSIGN_OR_RETURN(const SocketAddress address,
                         SocketAddress::Local(listener.get()));
  return std::unique_ptr<FrameServer>(
      new FrameServer(loop, options, handler, std::move(listener), address));
}

FrameServer::FrameServer(EventLoop* loop, const Options& options,
                         Handler* handler, UniqueFd listener,
                         const SocketAddress& address)
    : loop_(loop),
      options_(options),
      handler_(handler),
      address_(address),
      listener_(std::move(listener)) {}

void FrameServer::Open() {
  loop_->Post([this] { WatchListener(); });
}

void FrameServer::WatchListener() {
  if (!listener_.is_open()) return;
  if (loop_->Watch(listener_.get(), EPOLLIN, [this](uint32_t) { AcceptAll(); })
          .ok()) {
    return;
  }
  retry_timer_ = loop_->RunAt(Deadline::After(kAcceptPause).when(), [this] {
    retry_timer_.reset();
    WatchListener();
  });
}

void FrameServer::AcceptAll() {
  for (int i = 0; i < kAcceptAtOnce; ++i) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr,
                            SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.is_open()) {
      Admit(std::move(socket));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
        errno == ENOMEM) {
      // The listener stays readable: looking again at once would spin.
      loop_->Unwatch(listener_.get());
      retry_timer_ = loop_->RunAt(Deadline::After(kAcceptPause).when(), [this] {
        retry_timer_.reset();
        WatchListener();
      });
      return;
    }
    if (errno == EAGAIN) return;
  }
}

void FrameServer::MakeRoom() {
  // The stranger that has sent nothing valid for longest is closed first, so
  // that silent strangers cannot keep out members.
  const size_t room =
      static_cast<size_t>(options_.max_connections) + kSpareConnections;
  if (peers_.size() < room || strangers_.empty()) {
    return;
  }
  const auto it = peers_.find(*strangers_.begin());
  const std::shared_ptr<FrameConnection> connection = it->second.connection;
  connection->Close(absl::ResourceExhaustedError("the server is full"));
}

FrameConnection::Events FrameServer::EventsOf(ConnectionId id) {
  return {
      .on_frame = [this,
                   id](absl::string_view payload) { OnFrame(id, payload); },
      .on_head =
          [this, id](absl::string_view head, uint64_t tail_bytes) {
            return handler_->OnHead(id, head, tail_bytes);
          },
      .on_tail = [this, id] { handler_->OnTail(id); },
      .on_closed = [this, id](const absl::Status& why) { OnClosed(id, why); }};
}

void FrameServer::Admit(UniqueFd socket) {
  ConfigureConnection(socket.get());
  const absl::Status same_user = CheckSameUser(socket.get());
  const ConnectionId id = next_id_++;
  auto connection =
      FrameConnection::Create(loop_, std::move(socket),
                              {.max_frame_bytes = kMaxHandshakeBytes,
                               .max_queued_bytes = options_.max_queued_bytes,
                               .frame_timeout = options_.frame_timeout,
                               .pauses_reading = options_.pauses_reading});
  if (!connection->Start(EventsOf(id)).ok()) return;
  const bool full = num_connections_ >= options_.max_connections;
  MakeRoom();
  Peer& peer =
      peers_
          .emplace(id, Peer(connection,
                            ServerHandshake(options_.protocol, options_.secret,
                                            NewNonce())))
          .first->second;
  strangers_.insert(id);
  peer.timer = loop_->RunAt(
      Deadline::After(options_.handshake_timeout).when(), [this, id] {
        const auto it = peers_.find(id);
        if (it == peers_.end()) return;
        Refuse(it->second,
               absl::DeadlineExceededError(absl::StrCat(
                   "no handshake within ",
                   absl::FormatDuration(options_.handshake_timeout))));
      });
  if (!same_user.ok()) return Refuse(peer, same_user);
  if (full) {
    Refuse(peer, absl::ResourceExhaustedError(
                     absl::StrCat("it has ", options_.max_connections,
                                  " connections, as many as it may")));
  }
}

void FrameServer::OnFrame(ConnectionId id, absl::string_view payload) {
  const auto it = peers_.find(id);
  if (it == peers_.end()) return;
  if (it->second.stage == Stage::kOpen) {
    handler_->OnFrame(id, payload);
  } else {
    OnHandshakeFrame(id, it->second, payload);
  }
}

void FrameServer::OnHandshakeFrame(ConnectionId id, Peer& peer,
                                   absl::string_view payload) {
  const bool is_hello = peer.stage == Stage::kHello;
  const absl::StatusOr<std::string> answer =
      is_hello ? peer.handshake.AnswerHello(payload)
               : peer.handshake.AnswerProof(payload);
  if (!answer.ok()) return Refuse(peer, answer.status());
  if (is_hello) {
    peer.stage = Stage::kProof;
    (void)peer.connection->Send(*answer);
    return;
  }
  if (num_connections_ >= options_.max_connections) {
    return Refuse(peer, absl::ResourceExhaustedError(
                            absl::StrCat("it has ", options_.max_connections,
                                         " connections, as many as it may")));
  }
  loop_->Cancel(peer.timer);
  peer.connection->set_max_frame_bytes(options_.max_frame_bytes);
  strangers_.erase(id);
  ++num_connections_;
  // No other thread can send on it before the welcome, which would be misread.
  (void)peer.connection->Send(*answer);
  if (options_.has_tails) {
    peer.connection->set_has_tails(options_.max_tail_bytes);
  }
  peer.stage = Stage::kOpen;
  handler_->OnOpened(id);
}

void FrameServer::OnClosed(ConnectionId id, const absl::Status& why) {
  const auto it = peers_.find(id);
  if (it == peers_.end()) return;
  const bool was_open = it->second.stage == Stage::kOpen;
  loop_->Cancel(it->second.timer);
  strangers_.erase(id);
  peers_.erase(it);
  if (!was_open) return;
  --num_connections_;
  handler_->OnClosed(id, why);
}

void FrameServer::Refuse(Peer& peer, const absl::Status& why) {
  if (peer.stage == Stage::kRefused) return;
  peer.stage = Stage::kRefused;
  const std::shared_ptr<FrameConnection> connection = peer.connection;
  (void)connection->Send(EncodeRefusal(why));
  connection->CloseGently(why);
}

std::shared_ptr<FrameConnection> FrameServer::connection(
    ConnectionId connection) const {
  const auto it = peers_.find(connection);
  const bool is_open = it != peers_.end() && it->second.stage == Stage::kOpen;
  return is_open ? it->second.connection : nullptr;
}

void FrameServer::Send(ConnectionId connection, absl::string_view payload) {
  const auto it = peers_.find(connection);
  if (it == peers_.end() || it->second.stage != Stage::kOpen) return;
  // If it broke, the loop will notice and report it.
  (void)it->second.connection->Send(payload);
}

void FrameServer::Close(ConnectionId connection, const absl::Status& why) {
  const auto it = peers_.find(connection);
  if (it == peers_.end()) return;
  const std::shared_ptr<FrameConnection> closing = it->second.connection;
  closing->Close(why);
}

void FrameServer::StopAccepting() {
  if (retry_timer_) loop_->Cancel(*retry_timer_);
  retry_timer_.reset();
  if (!listener_.is_open()) return;
  loop_->Unwatch(listener_.get());
  listener_.Reset();
  const std::set<ConnectionId> strangers = strangers_;
  for (const ConnectionId id : strangers) {
    const auto it = peers_.find(id);
    if (it == peers_.end()) continue;
    Refuse(it->second, absl::UnavailableError("it is shutting down"));
  }
}

void FrameServer::CloseAll(const absl::Status& why) {
  StopAccepting();
  std::map<ConnectionId, Peer> peers = std::move(peers_);
  peers_.clear();
  strangers_.clear();
  num_connections_ = 0;
  for (auto& [id, peer] : peers) {
    loop_->Cancel(peer.timer);
    peer.connection->Close(why);
  }
}

}  // namespace sherd
