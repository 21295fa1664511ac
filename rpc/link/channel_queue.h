#ifndef SHERD_RPC_LINK_CHANNEL_QUEUE_H_
#define SHERD_RPC_LINK_CHANNEL_QUEUE_H_

#include <atomic>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/net/frame_connection.h"

namespace sherd::internal {

// Frames for one worker over one connection, in order, also while the
// connection is yet to be made.
//
// Threads. "Loop thread" as in EventLoop; the rest from any thread.
class ChannelQueue {
 public:
  enum class State {
    // There is no connection, and nobody has asked for one.
    kIdle,
    // Frames wait for one.
    kAwaiting,
    kOpen,
    // There will be none any more.
    kClosed,
  };

  // Sends or keeps `frame`, or returns why the outbox is closed or its
  // connection broken, without on_sent. `must_connect`: set if it now waits for
  // a connection, and did not before.
  absl::Status Send(OutgoingFrame frame, bool* must_connect)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // As Send, of nothing: true if it now waits, and did not before.
  bool Await() ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends `frame` if it is open; otherwise drops it, without on_sent, and
  // returns false.
  bool SendIfOpen(OutgoingFrame frame) ABSL_LOCKS_EXCLUDED(mutex_);

  State state() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsEmpty() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether something was sent since the last call.
  bool TakeActivity() { return is_active_.exchange(false); }

  // Loop thread. Sends what waits, and what comes, over `connection`.
  void Open(std::shared_ptr<FrameConnection> connection)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Loop thread. Frames that wait have failed, and so do those that come: all
  // with `why`.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Loop thread. Frames that wait have failed; the next one may try again.
  void StopWaiting(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void End(State state, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kIdle;
  // While it is open.
  std::shared_ptr<FrameConnection> connection_ ABSL_GUARDED_BY(mutex_);
  std::vector<OutgoingFrame> waiting_ ABSL_GUARDED_BY(mutex_);
  // Why it is closed.
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> is_active_{false};
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_LINK_CHANNEL_QUEUE_H_
