#ifndef SHERD_CORE_NET_FRAME_CONNECTION_H_
#define SHERD_CORE_NET_FRAME_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/net/event_loop.h"
#include "sherd/core/net/frame.h"

namespace sherd {

// A connected socket on a loop that sends and receives frames. While the other
// end does not read what is sent to it, no more is read from it, so that a peer
// cannot make this process hold more than it asked for.
//
// Threads. Send from any thread, the rest on the loop thread.
class FrameConnection : public std::enable_shared_from_this<FrameConnection> {
 public:
  struct Options {
    size_t max_frame_bytes = size_t{1} << 20;
    // A peer that leaves more unread than this is cut off.
    size_t max_queued_bytes = size_t{256} << 20;
    // A frame that has begun must be whole by then.
    absl::Duration frame_timeout = absl::InfiniteDuration();
  };
  struct Events {
    // The payload is valid during the call.
    std::function<void(absl::string_view payload)> on_frame;
    // Once, the last call of all. Why: kUnavailable if the other end closed the
    // connection or it broke, kInvalidArgument for a frame over the maximum,
    // kDeadlineExceeded for half of one, kResourceExhausted for one that does
    // not read, otherwise what Close was given.
    std::function<void(const absl::Status& why)> on_closed;
  };

  // The loop must outlive the connection's use of it: until on_closed.
  static std::shared_ptr<FrameConnection> Create(EventLoop* loop,
                                                 UniqueFd socket,
                                                 const Options& options);

  // Begins to receive. Keeps the connection alive until it closes.
  //   kResourceExhausted  The loop cannot watch it; on_closed is not called.
  absl::Status Start(Events events) ABSL_LOCKS_EXCLUDED(mutex_);

  // For frames after the one that is being handled.
  void set_max_frame_bytes(size_t bytes) {
    decoder_.set_max_payload_bytes(bytes);
  }

  // Sends, or keeps a copy of what does not go out at once.
  //   kUnavailable        The connection is closed.
  //   kInvalidArgument    The payload has 4 GiB or more.
  absl::Status Send(absl::string_view payload) ABSL_LOCKS_EXCLUDED(mutex_);

  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sends what is queued, tells the other end that no more follows, and closes
  // when that one does, after a second at the latest. Nothing is received any
  // more. A plain Close could throw away what the other end has not read.
  void CloseGently(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  FrameConnection(EventLoop* loop, UniqueFd socket, const Options& options);

  void HandleEvents(uint32_t events) ABSL_LOCKS_EXCLUDED(mutex_);
  void Receive() ABSL_LOCKS_EXCLUDED(mutex_);
  void DispatchFrames();
  void WatchHalfFrame();
  bool IsPaused() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateInterest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t queued_bytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return out_.size() - out_position_;
  }

  EventLoop* const loop_;
  const Options options_;

  absl::Mutex mutex_;
  UniqueFd socket_ ABSL_GUARDED_BY(mutex_);
  std::string out_ ABSL_GUARDED_BY(mutex_);
  size_t out_position_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t interest_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t token_ ABSL_GUARDED_BY(mutex_) = 0;
  bool end_after_sending_ ABSL_GUARDED_BY(mutex_) = false;
  bool overflowed_ ABSL_GUARDED_BY(mutex_) = false;

  // Of the loop thread only.
  int fd_ = -1;
  bool closed_ = false;
  std::optional<absl::Status> closing_;
  std::shared_ptr<const Events> events_;
  FrameDecoder decoder_;
  uint64_t frames_ = 0;
  std::optional<EventLoop::TimerId> half_frame_timer_;
  std::optional<EventLoop::TimerId> close_timer_;
};

}  // namespace sherd

#endif  // SHERD_CORE_NET_FRAME_CONNECTION_H_
