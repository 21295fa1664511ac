#include "sherd/rpc/link/reception.h"

#include <utility>

#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {

using rpc::LinkMessage;

absl::StatusOr<std::unique_ptr<Reception>> Reception::Create(
    EventLoop* loop, const FrameServer::Options& options, Host* host) {
  auto reception = std::unique_ptr<Reception>(new Reception(loop, host));
  SHERD_ASSIGN_OR_RETURN(reception->server_,
                         FrameServer::Create(loop, options, reception.get()));
  return reception;
}

void Reception::CloseAll(const absl::Status& why) {
  for (const auto& [id, guest] : guests_) {
    if (guest.channel == nullptr) loop_->Cancel(guest.timer);
  }
  guests_.clear();
  server_->CloseAll(why);
}

void Reception::OnOpened(FrameServer::ConnectionId id) {
  const EventLoop::TimerId timer =
      loop_->RunAt(Deadline::After(kHelloTimeout).when(), [this, id] {
        server_->Close(id,
                       absl::DeadlineExceededError("no hello arrived in time"));
      });
  guests_[id] = {.connection = server_->connection(id), .timer = timer};
}

absl::StatusOr<std::vector<absl::Span<std::byte>>> Reception::OnHead(
    FrameServer::ConnectionId id, absl::string_view head, uint64_t tail_bytes) {
  const auto it = guests_.find(id);
  if (it == guests_.end()) return std::vector<absl::Span<std::byte>>();
  Guest& guest = it->second;
  if (guest.channel != nullptr) {
    // The call may close it, and remove the guest.
    const std::shared_ptr<FrameConnection> connection = guest.connection;
    return guest.channel->OnHead(connection.get(), head, tail_bytes);
  }
  SHERD_RETURN_IF_ERROR(Receive(guest, head, tail_bytes));
  return std::vector<absl::Span<std::byte>>();
}

absl::Status Reception::Receive(Guest& guest, absl::string_view head,
                                uint64_t tail_bytes) {
  SHERD_ASSIGN_OR_RETURN(const LinkMessage message,
                         ParseLinkHead(head, tail_bytes));
  if (!message.has_hello()) {
    return absl::InvalidArgumentError(
        "expected a hello, found another message");
  }
  SHERD_RETURN_IF_ERROR(
      MaybeInjectFault({.point = FaultPoint::kRpcBeforeHelloReply,
                        .subject = message.hello().name()}));
  loop_->Cancel(guest.timer);
  LinkMessage answer;
  LinkChannel* const channel =
      host_->OnHello(message.hello(), answer.mutable_hello_reply());
  const std::shared_ptr<FrameConnection> connection = guest.connection;
  guest.channel = channel;
  // If that fails, the end of the connection follows.
  connection->Send({.head = LinkHead(answer)}).IgnoreError();
  if (channel != nullptr) {
    channel->Open(connection);
  } else {
    connection->CloseGently(absl::CancelledError("rejected"));
  }
  return absl::OkStatus();
}

void Reception::OnTail(FrameServer::ConnectionId id) {
  const auto it = guests_.find(id);
  if (it == guests_.end() || it->second.channel == nullptr) return;
  it->second.channel->OnTail(it->second.connection.get());
}

void Reception::OnClosed(FrameServer::ConnectionId id,
                         const absl::Status& why) {
  const auto it = guests_.find(id);
  if (it == guests_.end()) return;
  const Guest guest = std::move(it->second);
  guests_.erase(it);
  if (guest.channel == nullptr) return loop_->Cancel(guest.timer);
  guest.channel->OnClosed(guest.connection.get(), why);
}

}  // namespace sherd::internal
