#ifndef SHERD_RPC_LINK_LINK_CHANNEL_H_
#define SHERD_RPC_LINK_LINK_CHANNEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/net/event_loop.h"
#include "sherd/core/net/frame_connection.h"
#include "sherd/rpc/link/channel_queue.h"
#include "sherd/rpc/link/dialer.h"
#include "sherd/rpc/link/directory.h"
#include "sherd/rpc/link/wire.h"
#include "sherd/rpc/rpc.pb.h"

namespace sherd::internal {

// What both ends of a handshake name; see core/net/handshake.h.
inline constexpr char kLinkProtocol[] = "sherd-rpc 1";
// Who has shaken hands must say hello by then.
inline constexpr absl::Duration kHelloTimeout = absl::Seconds(10);

// Heads of frames begin with one byte that says whose message follows.
enum class Addressee : char { kLink = 'L', kHandler = 'H' };

// The head of a frame with a message of the links themselves.
std::string LinkHead(const rpc::LinkMessage& message);
// The message of such a frame.
//   kInvalidArgument  It is none, or has a tail.
absl::StatusOr<rpc::LinkMessage> ParseLinkHead(absl::string_view head,
                                               uint64_t tail_bytes);

// What the connections of one worker share. All of it outlives them, but for
// the directory, which is held.
struct LinkContext {
  EventLoop* loop;
  std::shared_ptr<const Directory> directory;
  Dialer* dialer;
  Wire::Handler* handler;
  std::string secret;
  FrameConnection::Options connection;
  // As in LinkOptions.
  absl::Duration heartbeat;
  absl::Duration patience;
};

// One connection with a worker, from the wish for it to its end: who makes it,
// how both ends find out who the other is, and what comes on it.
//
// Either end may make it. If both do at once, the one made by the lower rank
// stays: a worker turns down the hello of a higher rank while that one has to
// answer its own. One that was turned down tries again after a while, in case
// the other does not come.
//
// Threads. "Loop thread" as in EventLoop; the rest from any thread.
class LinkChannel {
 public:
  // The link that has this channel; on the loop thread.
  class Link {
   public:
    virtual ~Link() = default;
    // Something came.
    virtual void OnHeard() = 0;
    virtual void OnOpen(LinkChannel& channel) = 0;
    virtual absl::Status OnMessage(const rpc::LinkMessage& message) = 0;
    // It ended without a goodbye, or the worker cannot be reached.
    virtual void OnBroken(LinkChannel& channel, const absl::Status& why) = 0;
    // This process lacks what a connection needs, and may have it later.
    virtual void OnNoMeans(LinkChannel& channel, const absl::Status& why) = 0;
    // The worker said goodbye.
    virtual void OnGoodbye(LinkChannel& channel) = 0;
    // It is closed in good order.
    virtual void OnClosed(LinkChannel& channel) = 0;
  };

  LinkChannel(const LinkContext& context, Link& link, int rank, bool bulk);
  LinkChannel(const LinkChannel&) = delete;
  LinkChannel& operator=(const LinkChannel&) = delete;

  // As ChannelQueue::Send, and connects if need be.
  absl::Status Send(OutgoingFrame frame);
  // Connects if need be.
  void Connect();

  // Of the loop thread, all that follow.
  bool IsOpen() const { return outbox_.state() == ChannelQueue::State::kOpen; }
  bool IsClosed() const {
    return outbox_.state() == ChannelQueue::State::kClosed;
  }
  bool IsConnecting() const {
    return outbox_.state() == ChannelQueue::State::kAwaiting;
  }
  // In the middle of a tail, whose progress the connection watches.
  bool IsReceiving() const { return in_tail_; }
  bool TakeActivity() { return outbox_.TakeActivity(); }
  // Drops it unless the channel is open.
  void SendLinkMessage(const rpc::LinkMessage& message);

  // Whether a connection that the worker made is taken; then Open follows.
  bool Wants(const rpc::LinkMessage::Hello& hello) const;
  // Takes over a connection; its events come here, see the On... below.
  void Open(std::shared_ptr<FrameConnection> connection);

  // Sends what waits, says goodbye, and closes.
  void SayGoodbye();
  // Closes at once, if it is not closed: what waits has failed with `why`, and
  // so does what comes.
  void Close(const absl::Status& why);

  // Events of connections of this channel.
  absl::StatusOr<std::vector<absl::Span<std::byte>>> OnHead(
      FrameConnection* from, absl::string_view head, uint64_t tail_bytes);
  void OnTail(FrameConnection* from);
  void OnEnd(FrameConnection* from, const absl::Status& why);

 private:
  // Whether this worker is to say goodbye once nothing waits, and has said it.
  enum class Parting { kNo, kWanted, kSaid };

  void Dial();
  void OnDialed(absl::StatusOr<UniqueFd> socket);
  absl::Status Introduce(UniqueFd socket);
  absl::Status OnReply(const rpc::LinkMessage& message);
  void DialAgainAfter(absl::Duration pause, const absl::Status& why);
  void Fail(const absl::Status& why);
  void StopConnecting();
  void Part();

  const LinkContext& context_;
  Link& link_;
  const int rank_;
  const bool bulk_;
  ChannelQueue outbox_;

  // Of the loop thread.
  std::shared_ptr<FrameConnection> connection_;
  // One that this worker made, whose hello is not answered yet.
  std::shared_ptr<FrameConnection> candidate_;
  // For the answer, or until the next attempt.
  std::optional<EventLoop::TimerId> timer_;
  Deadline dial_deadline_ = Deadline::Infinite();
  // Of the tail that comes.
  uint64_t ticket_ = 0;
  bool in_tail_ = false;
  Parting parting_ = Parting::kNo;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_LINK_LINK_CHANNEL_H_
