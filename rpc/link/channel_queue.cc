#include "sherd/rpc/link/channel_queue.h"

#include <utility>

namespace sherd::internal {

absl::Status ChannelQueue::Send(OutgoingFrame frame, bool* must_connect) {
  std::shared_ptr<FrameConnection> connection;
  {
    absl::MutexLock lock(&mutex_);
    switch (state_) {
      case State::kClosed:
        return why_;
      case State::kIdle:
        state_ = State::kAwaiting;
        *must_connect = true;
        [[fallthrough]];
      case State::kAwaiting:
        waiting_.push_back(std::move(frame));
        return absl::OkStatus();
      case State::kOpen:
        connection = connection_;
    }
  }
  is_active_.store(true, std::memory_order_relaxed);
  return connection->Send(std::move(frame));
}

bool ChannelQueue::Await() {
  absl::MutexLock lock(&mutex_);
  if (state_ != State::kIdle) return false;
  state_ = State::kAwaiting;
  return true;
}

bool ChannelQueue::SendIfOpen(OutgoingFrame frame) {
  std::shared_ptr<FrameConnection> connection;
  {
    absl::MutexLock lock(&mutex_);
    connection = connection_;
  }
  return connection != nullptr && connection->Send(std::move(frame)).ok();
}

ChannelQueue::State ChannelQueue::state() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

bool ChannelQueue::IsEmpty() const {
  absl::MutexLock lock(&mutex_);
  return waiting_.empty();
}

void ChannelQueue::Open(std::shared_ptr<FrameConnection> connection) {
  // Not under the lock, since on_sent may send. What comes meanwhile waits, so
  // that it does not overtake.
  for (;;) {
    std::vector<OutgoingFrame> frames;
    {
      absl::MutexLock lock(&mutex_);
      if (waiting_.empty()) {
        state_ = State::kOpen;
        connection_ = std::move(connection);
        return;
      }
      frames.swap(waiting_);
    }
    for (OutgoingFrame& frame : frames) {
      std::function<void(const absl::Status&)> on_sent = frame.on_sent;
      const absl::Status status = connection->Send(std::move(frame));
      if (!status.ok() && on_sent) on_sent(status);
    }
  }
}

void ChannelQueue::Close(const absl::Status& why) { End(State::kClosed, why); }

void ChannelQueue::StopWaiting(const absl::Status& why) {
  End(State::kIdle, why);
}

void ChannelQueue::End(State state, const absl::Status& why) {
  std::vector<OutgoingFrame> frames;
  std::shared_ptr<FrameConnection> connection;
  {
    absl::MutexLock lock(&mutex_);
    state_ = state;
    why_ = why;
    frames.swap(waiting_);
    connection.swap(connection_);
  }
  for (OutgoingFrame& frame : frames) {
    if (frame.on_sent) frame.on_sent(why);
  }
}

}  // namespace sherd::internal
