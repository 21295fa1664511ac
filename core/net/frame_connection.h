#ifndef SHERD_CORE_NET_FRAME_CONNECTION_H_
#define SHERD_CORE_NET_FRAME_CONNECTION_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
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
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/net/event_loop.h"
#include "sherd/core/net/frame.h"

namespace sherd {

// A frame with a tail, to be sent.
struct OutgoingFrame {
  std::string head;
  // Sent from these places, one after another: valid until on_sent.
  std::vector<absl::Span<const std::byte>> tail;
  // Called exactly once for a frame that Send took: with OK when the system has
  // the last byte, or with why the connection was closed or broke before,
  // kCancelled if it was closed without an error; then part of the frame may
  // have been sent. Runs on the thread that sends, before Send returns, or on
  // the loop thread, without a lock; an OK on the thread that sends may come
  // after on_closed. May be null. If it holds the connection, it keeps it until
  // the frame was sent or the connection is closed.
  std::function<void(const absl::Status&)> on_sent;
  // A small frame that follows another of this kind within 0.1 ms waits for
  // more: they are sent together with the next that does not wait, when a
  // thread begins to take part in the loop, or after 0.1 ms.
  bool may_wait = false;
};

// A connected socket on a loop that sends and receives frames. While the peer
// does not read what is sent to it, nothing more is read from it, so that it
// cannot make this process queue more than it reads.
//
// Frames are payloads or, if both ends set `has_tails`, heads with tails. A
// tail is not copied: the system takes it from the sender's memory and puts it
// where on_head says, except for bytes that arrive together with the head, at
// most 64 KiB.
//
// Threads. Send from any thread, the rest on the loop thread.
// Cost. A frame is one sendmsg on the caller's thread if nothing is queued, and
// frames that waited are one together; a frame that has arrived whole, with a
// tail or without, is one recv, and so are several small ones.
class FrameConnection : public std::enable_shared_from_this<FrameConnection> {
 public:
  struct Options {
    // Of a payload or a head.
    size_t max_frame_bytes = size_t{1} << 20;
    // A peer that leaves more unread than this is disconnected. The overhead of
    // each frame counts too, but not tails, which are in the sender's memory:
    // the sender bounds them.
    size_t max_queued_bytes = size_t{256} << 20;
    // A frame that has begun must be whole by then; a tail must make progress.
    absl::Duration frame_timeout = absl::InfiniteDuration();
    // Frames have tails; see frame.h.
    bool has_tails = false;
    uint64_t max_tail_bytes = uint64_t{1} << 40;
    // False: reads even while the other end does not. For two ends that both
    // send unasked: if both paused, they would wait for each other.
    bool pauses_reading = true;
  };
  struct Events {
    // A frame without a tail has arrived. The payload is valid during the call.
    std::function<void(absl::string_view payload)> on_frame;
    // The head of a frame has arrived, valid during the call; `tail_bytes`, at
    // most the maximum, follow. Returns where these go: memory that the caller
    // owns and the connection writes to until on_tail or on_closed, together
    // `tail_bytes` long, or nothing: then they are dropped. An error closes the
    // connection with it.
    std::function<absl::StatusOr<std::vector<absl::Span<std::byte>>>(
        absl::string_view head, uint64_t tail_bytes)>
        on_head;
    // The tail of the last on_head has arrived, or was dropped. Not called for
    // a tail of 0 bytes.
    std::function<void()> on_tail;
    // Called once, the last of these calls; only on_sent of a frame that
    // another thread has just sent may follow. `why`: kUnavailable if the other
    // end closed the connection or it broke, kInvalidArgument for a frame over
    // the maximum, kDeadlineExceeded for an incomplete one, kResourceExhausted
    // for a peer that does not read, kInternal for memory of another size than
    // the tail, otherwise the error that on_head returned or Close was given.
    std::function<void(const absl::Status& why)> on_closed;
  };

  // Close it before the loop ends: the loop's end drops the connection without
  // on_closed, and calls on_sent with kCancelled. Sending also needs the loop.
  static std::shared_ptr<FrameConnection> Create(EventLoop* loop,
                                                 UniqueFd socket,
                                                 const Options& options);
  ~FrameConnection();

  // Begins to receive. Keeps the connection alive until it closes.
  // After an error none of `events` is called.
  //   kResourceExhausted  The loop cannot watch it.
  //   kInvalidArgument    With tails, on_head or on_tail is missing.
  absl::Status Start(Events events) ABSL_LOCKS_EXCLUDED(mutex_);

  // Applies to frames after the one that is being handled.
  void set_max_frame_bytes(size_t bytes) {
    decoder_.set_max_payload_bytes(bytes);
  }
  // Frames have tails from now on: those received after the one that is being
  // handled, and those that are sent. on_head and on_tail must be set.
  void set_has_tails(uint64_t max_tail_bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sends the frame, or queues a copy of the part that cannot be sent at once.
  // Where frames have tails, this one's is empty. Frames of one thread arrive
  // in the order of sending.
  //   kUnavailable        The connection is closed or broken, or the other end
  //                       has left too much unread. A broken connection closes
  //                       by itself, after what has arrived is handled.
  //   kInvalidArgument    The payload has 4 GiB or more.
  absl::Status Send(absl::string_view payload) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sends a frame with a tail, without a copy of the tail. After an error
  // nothing has been sent, and on_sent is not called.
  //   kUnavailable         The connection is closed or broken, or the other end
  //                        has left too much unread.
  //   kInvalidArgument     The head has 4 GiB or more.
  //   kFailedPrecondition  The connection has no tails.
  absl::Status Send(OutgoingFrame frame) ABSL_LOCKS_EXCLUDED(mutex_);

  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sends what is queued, notifies the other end that no more follows, and
  // closes when that one does, or after `limit`. Receives nothing more. A plain
  // Close could discard data that the other end has not read.
  void CloseGently(const absl::Status& why,
                   absl::Duration limit = absl::Seconds(1))
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Grows as data arrives, and as the other end takes data that was queued for
  // it: while it grows, that end is alive.
  uint64_t progress() const { return progress_ + taken_; }

 private:
  struct Outgoing;

  FrameConnection(EventLoop* loop, UniqueFd socket, const Options& options);

  void HandleEvents(uint32_t events) ABSL_LOCKS_EXCLUDED(mutex_);
  size_t GatherTail(iovec* pieces, size_t* count) const;
  bool Receive() ABSL_LOCKS_EXCLUDED(mutex_);
  void DispatchFrames();
  absl::Status BeginTail(const Events& events, absl::string_view head);
  void AdvanceTail(size_t size);
  void WatchHalfFrame();
  bool IsPaused() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool InBurst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Queue(Outgoing frame, bool waits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendGathered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SendNow(Outgoing* frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Fail(const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Break(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  std::list<Outgoing> DropQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Report(const std::list<Outgoing>& frames,
                     const absl::Status& status);
  void AfterQueueing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Flush() ABSL_LOCKS_EXCLUDED(mutex_);
  void FlushOnLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<size_t> SendQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateInterest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasTooMuchQueued() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  EventLoop* const loop_;
  const Options options_;

  absl::Mutex mutex_;
  UniqueFd socket_ ABSL_GUARDED_BY(mutex_);
  bool has_tails_ ABSL_GUARDED_BY(mutex_);
  std::list<Outgoing> queue_ ABSL_GUARDED_BY(mutex_);
  // Sent, but for their on_sent.
  std::list<Outgoing> sent_ ABSL_GUARDED_BY(mutex_);
  // Empty ones, for frames to come.
  std::list<Outgoing> spare_ ABSL_GUARDED_BY(mutex_);
  // Of queue_: overhead and tails.
  uint64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t queued_tail_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // The frames of queue_ wait for more, not for the other end.
  bool gathers_ ABSL_GUARDED_BY(mutex_) = false;
  // The loop will flush it soon.
  bool will_flush_ ABSL_GUARDED_BY(mutex_) = false;
  // When the last frame came that may wait.
  Deadline::Clock::time_point last_small_ ABSL_GUARDED_BY(mutex_);
  uint32_t interest_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t token_ ABSL_GUARDED_BY(mutex_) = 0;
  bool end_after_sending_ ABSL_GUARDED_BY(mutex_) = false;
  // Why sending fails from now on.
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);

  // Of the loop thread only.
  int fd_ = -1;
  // Empty ones that are not among the spare ones yet.
  std::list<Outgoing> reported_;
  bool closed_ = false;
  std::optional<absl::Status> closing_;
  // Set when sending fails; what has arrived is still handled.
  std::optional<absl::Status> broken_;
  std::shared_ptr<const Events> events_;
  FrameDecoder decoder_;
  // A tail is being received; its rest goes to the memory from tail_at_ on.
  // Without memory it is dropped.
  bool in_tail_ = false;
  std::vector<absl::Span<std::byte>> tail_;
  size_t tail_at_ = 0;
  // Whole frames and pieces of tails, so far.
  uint64_t progress_ = 0;
  // How often the other end has taken queued data.
  uint64_t taken_ = 0;
  std::optional<EventLoop::TimerId> half_frame_timer_;
  std::optional<EventLoop::TimerId> close_timer_;
};

}  // namespace sherd

#endif  // SHERD_CORE_NET_FRAME_CONNECTION_H_
