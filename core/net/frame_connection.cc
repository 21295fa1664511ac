#include "sherd/core/net/frame_connection.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

// While so much waits to be sent, nothing more is received, nor handled of what
// was received already.
constexpr size_t kHighWater = size_t{1} << 20;
constexpr size_t kMaxPayload = 0xffffffff;
constexpr absl::Duration kGentleClose = absl::Seconds(1);

absl::Status Broken(int error) {
  return absl::UnavailableError(
      absl::StrCat("the connection broke: ", strerror(error)));
}

}  // namespace

std::shared_ptr<FrameConnection> FrameConnection::Create(
    EventLoop* loop, UniqueFd socket, const Options& options) {
  return std::shared_ptr<FrameConnection>(
      new FrameConnection(loop, std::move(socket), options));
}

FrameConnection::FrameConnection(EventLoop* loop, UniqueFd socket,
                                 const Options& options)
    : loop_(loop),
      options_(options),
      socket_(std::move(socket)),
      decoder_(options.max_frame_bytes) {}

absl::Status FrameConnection::Start(Events events) {
  absl::MutexLock lock(&mutex_);
  fd_ = socket_.get();
  interest_ = EPOLLIN;
  SHERD_ASSIGN_OR_RETURN(
      token_,
      loop_->Watch(fd_, interest_, [self = shared_from_this()](uint32_t ready) {
        self->HandleEvents(ready);
      }));
  events_ = std::make_shared<const Events>(std::move(events));
  UpdateInterest();
  return absl::OkStatus();
}

absl::Status FrameConnection::Send(absl::string_view payload) {
  if (payload.size() > kMaxPayload) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", payload.size(), " bytes"));
  }
  const std::string header = FrameHeader(payload.size());
  absl::MutexLock lock(&mutex_);
  if (!socket_.is_open() || end_after_sending_) {
    return absl::UnavailableError("the connection is closed");
  }
  size_t sent = 0;
  if (queued_bytes() == 0) {
    iovec parts[2] = {{const_cast<char*>(header.data()), header.size()},
                      {const_cast<char*>(payload.data()), payload.size()}};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    ssize_t n;
    do {
      n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    // The loop finds out what is wrong with a broken connection, and says so.
    if (n < 0 && errno != EAGAIN) return Broken(errno);
    if (n > 0) sent = static_cast<size_t>(n);
  }
  if (sent < header.size()) {
    out_.append(header, sent, std::string::npos);
    sent = header.size();
  }
  out_.append(payload.data() + sent - header.size(),
              payload.size() - (sent - header.size()));
  if (queued_bytes() > options_.max_queued_bytes && !overflowed_) {
    overflowed_ = true;
    loop_->Post([self = shared_from_this()] {
      self->Close(absl::ResourceExhaustedError(
          "the other end does not read what is sent to it"));
    });
  }
  UpdateInterest();
  return absl::OkStatus();
}

void FrameConnection::UpdateInterest() {
  if (token_ == 0) return;
  uint32_t interest = 0;
  if (queued_bytes() > 0) interest |= EPOLLOUT;
  if (queued_bytes() <= kHighWater) interest |= EPOLLIN;
  if (interest == interest_) return;
  interest_ = interest;
  loop_->Modify(socket_.get(), token_, interest);
}

bool FrameConnection::IsPaused() {
  absl::MutexLock lock(&mutex_);
  return queued_bytes() > kHighWater;
}

absl::Status FrameConnection::Flush() {
  while (queued_bytes() > 0) {
    const ssize_t n = send(socket_.get(), out_.data() + out_position_,
                           queued_bytes(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) return Broken(errno);
    out_position_ += static_cast<size_t>(n);
  }
  if (queued_bytes() == 0) {
    std::string().swap(out_);
    out_position_ = 0;
    if (end_after_sending_) shutdown(socket_.get(), SHUT_WR);
  } else if (out_position_ > out_.size() / 2) {
    out_.erase(0, out_position_);
    out_position_ = 0;
  }
  UpdateInterest();
  return absl::OkStatus();
}

void FrameConnection::HandleEvents(uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      status = Flush();
    }
    if (!status.ok()) return Close(status);
    DispatchFrames();
    if (closed_) return;
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Receive();
}

void FrameConnection::Receive() {
  std::vector<char>& buffer = loop_->scratch();
  ssize_t n;
  do {
    n = recv(fd_, buffer.data(), buffer.size(), 0);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return;
  if (n < 0) return Close(Broken(errno));
  if (n == 0) {
    return Close(absl::UnavailableError("the other end closed the connection"));
  }
  if (closing_) return;
  decoder_.Append({buffer.data(), static_cast<size_t>(n)});
  DispatchFrames();
}

void FrameConnection::DispatchFrames() {
  // Not destroyed while it runs, though it may close the connection.
  const std::shared_ptr<const Events> events = events_;
  while (!closed_ && !closing_ && !IsPaused()) {
    absl::StatusOr<std::optional<absl::string_view>> payload = decoder_.Next();
    if (!payload.ok()) return Close(payload.status());
    if (!*payload) break;
    ++frames_;
    events->on_frame(**payload);
  }
  if (!closed_ && !closing_) WatchHalfFrame();
}

void FrameConnection::WatchHalfFrame() {
  if (decoder_.buffered_bytes() == 0) {
    if (half_frame_timer_) loop_->Cancel(*half_frame_timer_);
    half_frame_timer_.reset();
    return;
  }
  if (half_frame_timer_ || options_.frame_timeout == absl::InfiniteDuration()) {
    return;
  }
  half_frame_timer_ =
      loop_->RunAt(Deadline::After(options_.frame_timeout).when(),
                   [self = shared_from_this(), before = frames_] {
                     self->half_frame_timer_.reset();
                     if (self->frames_ != before || self->IsPaused()) {
                       return self->WatchHalfFrame();
                     }
                     self->Close(absl::DeadlineExceededError(absl::StrCat(
                         "half a frame, ", self->decoder_.buffered_bytes(),
                         " bytes, and no more for ",
                         absl::FormatDuration(self->options_.frame_timeout))));
                   });
}

void FrameConnection::Close(const absl::Status& why) {
  if (closed_) return;
  closed_ = true;
  const std::shared_ptr<FrameConnection> self = shared_from_this();
  loop_->Unwatch(fd_);
  if (half_frame_timer_) loop_->Cancel(*half_frame_timer_);
  if (close_timer_) loop_->Cancel(*close_timer_);
  {
    absl::MutexLock lock(&mutex_);
    token_ = 0;
    std::string().swap(out_);
    out_position_ = 0;
    socket_.Reset();
  }
  const std::shared_ptr<const Events> events = std::move(events_);
  if (events != nullptr) events->on_closed(closing_.value_or(why));
}

void FrameConnection::CloseGently(const absl::Status& why) {
  if (closed_ || closing_) return;
  closing_ = why;
  if (half_frame_timer_) loop_->Cancel(*half_frame_timer_);
  half_frame_timer_.reset();
  close_timer_ =
      loop_->RunAt(Deadline::After(kGentleClose).when(),
                   [self = shared_from_this(), why] { self->Close(why); });
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    end_after_sending_ = true;
    status = Flush();
  }
  if (!status.ok()) Close(status);
}

}  // namespace sherd
