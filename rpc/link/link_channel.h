#ifndef SHERD_RPC_LINK_LINK_CHANNEL_H_
#define SHERD_RPC_LINK_LINK_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/net/event_loop.h"
#include "sherd/core/net/frame_connection.h"
#include "sherd/rpc/link/dialer.h"
#include "sherd/rpc/link/directory.h"
#include "sherd/rpc/link/wire.h"
#include "sherd/rpc/rpc.pb.h"

namespace sherd::internal {

// The name of the protocol at both ends of a handshake; see
// core/net/handshake.h.
inline constexpr char kLinkProtocol[] = "sherd-rpc 1";
// A hello must follow the handshake within this time.
inline constexpr absl::Duration kHelloTimeout = absl::Seconds(10);

// The first byte of a frame's head is the addressee of its message.
enum class Addressee : char { kLink = 'L', kHandler = 'H' };

// The head of a frame with a message between the links themselves.
std::string LinkHead(const rpc::LinkMessage& message);
// The message of such a frame.
//   kInvalidArgument  It is not such a message, or has a tail.
absl::StatusOr<rpc::LinkMessage> ParseLinkHead(absl::string_view head,
                                               uint64_t tail_bytes);

// The objects that the connections of one worker share. All of them outlive the
// connections, but for the directory, which is held.
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

// One connection with a worker, from the request for it to its end: queues
// frames until it is made, makes it, exchanges hellos, and receives.
//
// Either end may make it. If both do at once, the one made by the lower rank
// stays: a worker rejects the hello of a higher rank while its own is
// unanswered. A worker that was rejected tries again after a while, in case the
// other does not connect.
//
// Threads. "Loop thread" as in EventLoop; the rest from any thread.
class LinkChannel {
 public:
  enum class End {
    // It broke without a goodbye, or the worker cannot be reached.
    kBroken,
    // The worker said goodbye.
    kGoodbye,
    // This worker said goodbye, or was not connected.
    kParted,
    // This process lacks the resources for a connection, for now.
    kNoMeans,
  };

  // The link that owns this channel; called on the loop thread.
  class Link {
   public:
    virtual ~Link() = default;
    virtual void OnOpen(LinkChannel& channel) = 0;
    virtual absl::Status OnMessage(const rpc::LinkMessage& message) = 0;
    virtual void OnEnd(LinkChannel& channel, End end,
                       const absl::Status& why) = 0;
    // Returns another, open channel, which takes the frames that wait for
    // this one, if this one cannot be opened now; or null.
    virtual LinkChannel* OpenBeside(const LinkChannel& channel) = 0;
  };

  LinkChannel(const LinkContext& context, Link& link, int rank, bool bulk);
  LinkChannel(const LinkChannel&) = delete;
  LinkChannel& operator=(const LinkChannel&) = delete;

  // Sends or queues `frame`, and connects if necessary; or returns why the
  // channel is closed or its connection broken, without calling on_sent.
  absl::Status Send(OutgoingFrame frame) ABSL_LOCKS_EXCLUDED(mutex_);
  // Connects if necessary.
  void Connect() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether something was sent since the last call.
  bool TakeActivity() { return is_active_.exchange(false); }

  // All that follow: on the loop thread.
  bool IsOpen() const { return connection_ != nullptr; }
  bool IsClosed() const ABSL_LOCKS_EXCLUDED(mutex_) {
    return state() == State::kClosed;
  }
  // Whether something arrived since the last call, or the worker received some
  // of the data that is queued for it.
  bool TakeProgress();
  // Drops it unless the channel is open.
  void SendLinkMessage(const rpc::LinkMessage& message);

  // Whether to accept a connection that the worker made; then Open follows.
  bool Wants(const rpc::LinkMessage::Hello& hello) const;
  // Takes over a connection; its events arrive at the On... below.
  void Open(std::shared_ptr<FrameConnection> connection)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Accepts no more frames, sends what is queued, says goodbye, and closes once
  // the worker has it.
  void SayGoodbye() ABSL_LOCKS_EXCLUDED(mutex_);
  // Closes at once, if it is not closed: queued frames fail with `why`, and so
  // do later ones.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Events of connections of this channel.
  absl::StatusOr<std::vector<absl::Span<std::byte>>> OnHead(
      FrameConnection* from, absl::string_view head, uint64_t tail_bytes);
  void OnTail(FrameConnection* from);
  void OnClosed(FrameConnection* from, const absl::Status& why);

 private:
  enum class State {
    // There is no connection, and none was requested.
    kIdle,
    // Frames wait for a connection.
    kConnecting,
    kOpen,
    // There will be no connection any more.
    kClosed,
  };

  State state() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return state_;
  }
  bool HasWaiting() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return !waiting_.empty();
  }
  void Dial();
  void OnDialed(absl::StatusOr<UniqueFd> socket);
  absl::Status Introduce(UniqueFd socket);
  absl::Status OnReply(const rpc::LinkMessage& message);
  void DialAgainAfter(absl::Duration pause, const absl::Status& why);
  void Fail(const absl::Status& why);
  void StopConnecting();
  // The connection has ended, or none could be made: queued frames fail with
  // `why` or, if there is `other`, are sent on that one.
  void Drop(State state, const absl::Status& why, LinkChannel* other = nullptr)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Part();

  const LinkContext& context_;
  Link& link_;
  const int rank_;
  const bool bulk_;
  std::atomic<bool> is_active_{false};

  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kIdle;
  std::vector<OutgoingFrame> waiting_ ABSL_GUARDED_BY(mutex_);
  // Why no more frames are accepted.
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
  // While it is open. Changes on the loop thread, under mutex_.
  std::shared_ptr<FrameConnection> connection_;

  // Of the loop thread.
  // A connection that this worker made, whose hello is not answered yet.
  std::shared_ptr<FrameConnection> candidate_;
  // For the answer, or for the next attempt.
  std::optional<EventLoop::TimerId> timer_;
  Deadline dial_deadline_ = Deadline::Infinite();
  // Of connection_, at the last TakeProgress.
  uint64_t progress_ = 0;
  // Of the tail that is being received.
  uint64_t ticket_ = 0;
  bool says_goodbye_ = false;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_LINK_LINK_CHANNEL_H_
