#include "sherd/core/net/frame_connection.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

// While more than this is queued, nothing is received, and data that was
// received already is not handled.
constexpr size_t kHighWater = size_t{1} << 20;
constexpr size_t kMaxPayload = 0xffffffff;
// How long a broken connection still receives.
constexpr absl::Duration kListenAfterBreak = absl::Seconds(1);
// Pieces of memory in one call of the system, which takes up to 1024 of them.
constexpr size_t kPieces = 256;
// Other connections, and other threads that send on this one, get their turn
// when this much has been sent, or received of a tail.
constexpr size_t kSentAtOnce = size_t{1} << 20;
constexpr size_t kReceivedAtOnce = size_t{2} << 20;
// Small queued payloads are joined up to about this size.
constexpr size_t kJoinedBytes = size_t{64} << 10;
// Frames that may wait have at most this many bytes, follow one another within
// this time, and are sent when they are this many.
constexpr size_t kSmallFrame = size_t{4} << 10;
constexpr auto kBurst = std::chrono::microseconds(100);
constexpr size_t kGathered = 16;
// A flush leaves the memory of so many frames to others, unless so many are
// waiting for use: that costs less than to free on one thread what another one
// allocates. A connection keeps three times as many at most.
constexpr size_t kSpare = 2 * kGathered;

// A change is reported once. The end of the stream is a change of its own, so
// that it is seen even if it arrives behind bytes that were read.
constexpr uint32_t kEdges = EPOLLET | EPOLLRDHUP;
constexpr uint32_t kEnds = EPOLLRDHUP | EPOLLHUP | EPOLLERR;

constexpr char kUnread[] = "it does not read what is sent to it";

absl::Status Broken(int error) {
  return absl::UnavailableError(
      absl::StrCat("the connection broke: ", strerror(error)));
}

// As sendmsg.
ssize_t SendPieces(int fd, iovec* pieces, size_t count) {
  msghdr message = {};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  ssize_t n;
  do {
    n = sendmsg(fd, &message, MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  return n;
}

// Whether there is something to receive: bytes or the end of the stream.
bool HasInput(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN) != 0;
}

template <typename Byte>
uint64_t TotalBytes(const std::vector<absl::Span<Byte>>& spans) {
  uint64_t total = 0;
  for (const absl::Span<Byte>& span : spans) total += span.size();
  return total;
}

}  // namespace

// A frame that is not sent yet, or several without tails. Its parts are the
// header, the head and the spans of the tail.
struct FrameConnection::Outgoing {
  std::string header;
  // Without a header: payloads with theirs, the first perhaps in part.
  std::string head;
  std::vector<absl::Span<const std::byte>> tail;
  std::function<void(const absl::Status&)> on_sent;
  // The part that is read next: a byte of the header, of the head, or of a
  // span of the tail.
  size_t part = 0;
  size_t offset = 0;

  size_t num_parts() const { return 2 + tail.size(); }
  bool is_sent() const { return part == num_parts(); }
  iovec Part(size_t i) const {
    const void* data = i == 0   ? header.data()
                       : i == 1 ? head.data()
                                : static_cast<const void*>(tail[i - 2].data());
    const size_t size = i == 0   ? header.size()
                        : i == 1 ? head.size()
                                 : tail[i - 2].size();
    return {const_cast<void*>(data), size};
  }
  bool is_untouched() const { return part == 0 && offset == 0; }
  // Queued payloads are joined.
  bool TakesPayloads() const {
    return header.empty() && head.size() < kJoinedBytes;
  }
  // Its cost while it waits, besides its bytes.
  uint64_t Overhead() const {
    return sizeof(Outgoing) + tail.capacity() * sizeof(tail[0]);
  }
  // Adds what is not sent, up to `limit` bytes, to `pieces`, of which `count`
  // are in use. Returns how many bytes it added.
  size_t Gather(size_t limit, iovec* pieces, size_t* count) const {
    size_t added = 0;
    for (size_t i = part; i < num_parts() && *count < kPieces && added < limit;
         ++i) {
      iovec piece = Part(i);
      const size_t skipped = i == part ? offset : 0;
      piece.iov_base = static_cast<char*>(piece.iov_base) + skipped;
      piece.iov_len = std::min(piece.iov_len - skipped, limit - added);
      if (piece.iov_len > 0) pieces[(*count)++] = piece;
      added += piece.iov_len;
    }
    return added;
  }
  // Adds how much of it is not sent, but for the tail, and of the tail.
  void CountLeft(uint64_t* own, uint64_t* of_tail) const {
    for (size_t i = part; i < num_parts(); ++i) {
      const size_t left = Part(i).iov_len - (i == part ? offset : 0);
      *(i < 2 ? own : of_tail) += left;
    }
  }
  // `*size` bytes have been sent; leaves those that are not of this frame.
  // Returns how many were of the tail.
  uint64_t Advance(size_t* size) {
    uint64_t of_tail = 0;
    while (!is_sent()) {
      const size_t left = Part(part).iov_len - offset;
      const size_t step = std::min(left, *size);
      *size -= step;
      if (part >= 2) of_tail += step;
      if (step < left) {
        offset += step;
        break;
      }
      ++part;
      offset = 0;
    }
    return of_tail;
  }
};

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
      has_tails_(options.has_tails),
      decoder_(options.max_frame_bytes) {
  if (options.has_tails) decoder_.set_has_tails(options.max_tail_bytes);
}

FrameConnection::~FrameConnection() {
  std::list<Outgoing> sent;
  std::list<Outgoing> unsent;
  {
    absl::MutexLock lock(&mutex_);
    sent.swap(sent_);
    unsent = DropQueue();
    token_ = 0;
    socket_.Reset();
  }
  Report(sent, absl::OkStatus());
  Report(unsent, absl::CancelledError("the connection's loop has ended"));
}

void FrameConnection::Report(const std::list<Outgoing>& frames,
                             const absl::Status& status) {
  for (const Outgoing& frame : frames) {
    if (frame.on_sent) frame.on_sent(status);
  }
}

absl::Status FrameConnection::Start(Events events) {
  absl::MutexLock lock(&mutex_);
  if (has_tails_ && (!events.on_head || !events.on_tail)) {
    return absl::InvalidArgumentError(
        "a connection with tails: expected on_head and on_tail");
  }
  fd_ = socket_.get();
  interest_ = EPOLLIN | kEdges;
  SHERD_ASSIGN_OR_RETURN(
      token_,
      loop_->Watch(fd_, interest_, [self = shared_from_this()](uint32_t ready) {
        self->HandleEvents(ready);
      }));
  events_ = std::make_shared<const Events>(std::move(events));
  UpdateInterest();
  return absl::OkStatus();
}

void FrameConnection::set_has_tails(uint64_t max_tail_bytes) {
  SHERD_CHECK(events_ == nullptr || (events_->on_head && events_->on_tail));
  decoder_.set_has_tails(max_tail_bytes);
  absl::MutexLock lock(&mutex_);
  has_tails_ = true;
}

absl::Status FrameConnection::CheckOpen() const {
  if (!failure_.ok()) return failure_;
  if (socket_.is_open() && !end_after_sending_) return absl::OkStatus();
  return absl::UnavailableError("the connection is closed");
}

absl::Status FrameConnection::Send(absl::string_view payload) {
  if (payload.size() > kMaxPayload) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", payload.size(), " bytes"));
  }
  absl::MutexLock lock(&mutex_);
  SHERD_RETURN_IF_ERROR(CheckOpen());
  const std::string header = has_tails_ ? TailFrameHeader(payload.size(), 0)
                                        : FrameHeader(payload.size());
  size_t sent = 0;
  if (queue_.empty()) {
    iovec pieces[2] = {{const_cast<char*>(header.data()), header.size()},
                       {const_cast<char*>(payload.data()),
                        std::min(payload.size(), kSentAtOnce)}};
    const ssize_t n = SendPieces(socket_.get(), pieces, 2);
    if (n < 0 && errno != EAGAIN) return Fail(Broken(errno));
    if (n > 0) sent = static_cast<size_t>(n);
    if (sent == header.size() + payload.size()) return absl::OkStatus();
  }
  if (queue_.empty() || !queue_.back().TakesPayloads()) {
    queue_.emplace_back();
    queued_bytes_ += queue_.back().Overhead();
  }
  std::string& waiting = queue_.back().head;
  if (sent < header.size()) waiting.append(header, sent, std::string::npos);
  payload.remove_prefix(sent - std::min(sent, header.size()));
  waiting.append(payload.data(), payload.size());
  queued_bytes_ += header.size() - std::min(sent, header.size());
  queued_bytes_ += payload.size();
  if (gathers_) SendGathered();
  AfterQueueing();
  return absl::OkStatus();
}

absl::Status FrameConnection::Send(OutgoingFrame frame) {
  if (frame.head.size() > kMaxPayload) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame with a head of ", frame.head.size(), " bytes"));
  }
  const uint64_t bytes = frame.head.size() + TotalBytes(frame.tail);
  Outgoing out = {
      .header = TailFrameHeader(frame.head.size(), bytes - frame.head.size()),
      .head = std::move(frame.head),
      .tail = std::move(frame.tail),
      .on_sent = nullptr};
  {
    absl::MutexLock lock(&mutex_);
    SHERD_RETURN_IF_ERROR(CheckOpen());
    if (!has_tails_) {
      return absl::FailedPreconditionError("the connection has no tails");
    }
    const bool waits = frame.may_wait && bytes <= kSmallFrame && InBurst();
    if (queue_.empty() && !waits) SHERD_RETURN_IF_ERROR(SendNow(&out));
    if (!out.is_sent()) {
      out.on_sent = std::exchange(frame.on_sent, nullptr);
      Queue(std::move(out), waits);
    }
  }
  if (frame.on_sent) frame.on_sent(absl::OkStatus());
  return absl::OkStatus();
}

void FrameConnection::Queue(Outgoing frame, bool waits) {
  queued_bytes_ += frame.Overhead();
  frame.CountLeft(&queued_bytes_, &queued_tail_bytes_);
  if (spare_.empty()) spare_.emplace_back();
  spare_.front() = std::move(frame);
  queue_.splice(queue_.end(), spare_, spare_.begin());
  if (waits && queue_.size() == 1) gathers_ = true;
  if (gathers_ && waits && queue_.size() < kGathered) {
    if (!std::exchange(will_flush_, true)) {
      loop_->PostSoon([self = shared_from_this()] { self->FlushOnLoop(); });
    }
    return;
  }
  if (gathers_) SendGathered();
  AfterQueueing();
}

// Sends what was queued to wait for more, and the frame that does not wait. A
// flush, which will come, calls on_sent: what the frames of other threads own
// may call their program.
void FrameConnection::SendGathered() {
  gathers_ = false;
  // The frames are queued, so that on_sent gets the error.
  if (const absl::Status status = SendQueued().status(); !status.ok()) {
    Fail(status).IgnoreError();
  }
  if (!queue_.empty() && !queue_.front().is_untouched()) {
    MaybeInjectFault({.point = FaultPoint::kFramePartSent}).IgnoreError();
  }
}

// Whether a frame that may wait, and comes now, follows another such closely.
bool FrameConnection::InBurst() {
  const auto now = Deadline::Clock::now();
  return now - std::exchange(last_small_, now) < kBurst;
}

absl::Status FrameConnection::SendNow(Outgoing* frame) {
  bool is_full = false;
  size_t total = 0;
  while (!frame->is_sent() && !is_full && total < kSentAtOnce) {
    iovec pieces[kPieces];
    size_t count = 0;
    const size_t offered = frame->Gather(kSentAtOnce - total, pieces, &count);
    const ssize_t n = SendPieces(socket_.get(), pieces, count);
    if (n < 0 && errno != EAGAIN) {
      absl::Status status = Fail(Broken(errno));
      // If a part of it was sent, on_sent gets the error, as for a queued
      // frame.
      return frame->is_untouched() ? status : absl::OkStatus();
    }
    if (n < 0) break;
    size_t size = static_cast<size_t>(n);
    total += size;
    is_full = size < offered;
    frame->Advance(&size);
  }
  if (total > 0 && !frame->is_sent()) {
    MaybeInjectFault({.point = FaultPoint::kFramePartSent, .bytes = total})
        .IgnoreError();
  }
  return absl::OkStatus();
}

// Sending fails from now on. Returns why.
absl::Status FrameConnection::Fail(const absl::Status& why) {
  failure_ = why;
  loop_->Post([self = shared_from_this(), why] { self->Break(why); });
  return failure_;
}

void FrameConnection::AfterQueueing() {
  if (queued_bytes_ > options_.max_queued_bytes) {
    // It accepts no more, so that this is reported once.
    failure_ = absl::UnavailableError(kUnread);
    loop_->Post([self = shared_from_this()] {
      self->Close(absl::ResourceExhaustedError(kUnread));
    });
  }
  UpdateInterest();
}

bool FrameConnection::HasTooMuchQueued() const {
  return options_.pauses_reading &&
         queued_bytes_ + queued_tail_bytes_ > kHighWater;
}

void FrameConnection::UpdateInterest() {
  if (token_ == 0) return;
  uint32_t interest = kEdges;
  if (!queue_.empty() && !gathers_) interest |= EPOLLOUT;
  if (!HasTooMuchQueued()) interest |= EPOLLIN;
  if (interest == interest_) return;
  interest_ = interest;
  LookAgain();
}

// Has the loop report pending events again.
void FrameConnection::LookAgain() {
  if (token_ != 0) loop_->Modify(socket_.get(), token_, interest_);
}

bool FrameConnection::IsPaused() {
  if (!options_.pauses_reading) return false;
  absl::MutexLock lock(&mutex_);
  return HasTooMuchQueued();
}

// Returns the bytes that the system took.
absl::StatusOr<size_t> FrameConnection::SendQueued() {
  size_t total = 0;
  while (!queue_.empty() && total < kSentAtOnce) {
    iovec pieces[kPieces];
    size_t count = 0;
    size_t room = kSentAtOnce - total;
    for (const Outgoing& frame : queue_) {
      if (count == kPieces || room == 0) break;
      room -= frame.Gather(room, pieces, &count);
    }
    const ssize_t n = SendPieces(socket_.get(), pieces, count);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) return Broken(errno);
    size_t left = static_cast<size_t>(n);
    const bool is_full = left < kSentAtOnce - total - room;
    total += left;
    while (!queue_.empty()) {
      const size_t before = left;
      const uint64_t of_tail = queue_.front().Advance(&left);
      queued_tail_bytes_ -= of_tail;
      queued_bytes_ -= before - left - of_tail;
      if (!queue_.front().is_sent()) break;
      queued_bytes_ -= queue_.front().Overhead();
      sent_.splice(sent_.end(), queue_, queue_.begin());
    }
    if (is_full) break;
  }
  return total;
}

absl::Status FrameConnection::Flush() {
  std::list<Outgoing> sent;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    const absl::StatusOr<size_t> taken = SendQueued();
    status = taken.status();
    will_flush_ = false;
    // The system had no room for it before.
    if (!std::exchange(gathers_, false) && taken.value_or(0) > 0) ++taken_;
    if (status.ok() && queue_.empty() && end_after_sending_) {
      shutdown(socket_.get(), SHUT_WR);
    }
    UpdateInterest();
    // It may have stopped before the system's buffer was full.
    if (!queue_.empty()) LookAgain();
    sent.swap(sent_);
    if (spare_.size() < kSpare) spare_.splice(spare_.end(), reported_);
  }
  Report(sent, absl::OkStatus());
  // What they own goes now, and not under the lock.
  for (Outgoing& frame : sent) frame = Outgoing();
  while (sent.size() > kSpare) sent.pop_back();
  reported_ = std::move(sent);
  return status;
}

void FrameConnection::FlushOnLoop() {
  if (closed_) return;
  if (const absl::Status status = Flush(); !status.ok()) Break(status);
  // It may have paused.
  DispatchFrames();
}

void FrameConnection::HandleEvents(uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    FlushOnLoop();
    if (closed_) return;
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    const bool may_have_more = Receive() || (events & kEnds) != 0;
    if (closed_) return;
    if (broken_ && !HasInput(fd_)) return Close(*broken_);
    if (!may_have_more && !broken_) return;
    absl::MutexLock lock(&mutex_);
    LookAgain();
  }
}

std::list<FrameConnection::Outgoing> FrameConnection::DropQueue() {
  queued_bytes_ = 0;
  queued_tail_bytes_ = 0;
  gathers_ = false;
  return std::exchange(queue_, {});
}

// Sending fails from now on. The other end may have sent something before it
// closed.
void FrameConnection::Break(const absl::Status& why) {
  if (closed_ || broken_) return;
  const std::shared_ptr<FrameConnection> self = shared_from_this();
  if (closing_ || !HasInput(fd_)) return Close(why);
  broken_ = why;
  close_timer_ = loop_->RunAt(Deadline::After(kListenAfterBreak).when(),
                              [self, why] { self->Close(why); });
  std::list<Outgoing> unsent;
  {
    absl::MutexLock lock(&mutex_);
    failure_ = why;
    unsent = DropQueue();
    UpdateInterest();
    LookAgain();
  }
  Report(unsent, why);
}

// Collects the rest of the tail's memory, up to a limit. Returns its bytes.
size_t FrameConnection::GatherTail(iovec* pieces, size_t* count) const {
  size_t added = 0;
  for (size_t i = tail_at_;
       i < tail_.size() && *count < kPieces && added < kReceivedAtOnce; ++i) {
    const size_t size = std::min(tail_[i].size(), kReceivedAtOnce - added);
    if (size > 0) pieces[(*count)++] = {tail_[i].data(), size};
    added += size;
  }
  return added;
}

// Reads once. Returns whether there may be more.
bool FrameConnection::Receive() {
  std::vector<char>& scratch = loop_->scratch();
  iovec pieces[kPieces];
  size_t count = 0;
  const size_t of_rest = GatherTail(pieces, &count);
  size_t room = of_rest;
  // Bytes behind the tail, or all bytes if it has no memory.
  if (count < kPieces &&
      (tail_.empty() || of_rest == decoder_.tail_bytes_left())) {
    pieces[count++] = {scratch.data(), scratch.size()};
    room += scratch.size();
  }
  ssize_t n;
  do {
    // The plain call costs less.
    n = count == 1 ? recv(fd_, pieces[0].iov_base, pieces[0].iov_len, 0)
                   : readv(fd_, pieces, static_cast<int>(count));
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return false;
  if (n <= 0) {
    Close(n < 0
              ? Broken(errno)
              : absl::UnavailableError("the other end closed the connection"));
    return false;
  }
  const bool is_full = static_cast<size_t>(n) == room;
  if (closing_) return is_full;
  const uint64_t of_tail =
      std::min(static_cast<uint64_t>(n), decoder_.tail_bytes_left());
  if (of_tail > 0) {
    decoder_.SkipTail(of_tail);
    ++progress_;
  }
  const size_t dropped = tail_.empty() ? of_tail : 0;
  AdvanceTail(of_tail);
  decoder_.Lend({scratch.data() + dropped, static_cast<size_t>(n) - of_tail});
  DispatchFrames();
  decoder_.Keep();
  return is_full;
}

void FrameConnection::DispatchFrames() {
  // Not destroyed while it runs, though it may close the connection.
  const std::shared_ptr<const Events> events = events_;
  while (!closed_ && !closing_ && !IsPaused()) {
    if (in_tail_) {
      if (decoder_.tail_bytes_left() > 0) break;
      in_tail_ = false;
      events->on_tail();
      continue;
    }
    absl::StatusOr<std::optional<absl::string_view>> payload = decoder_.Next();
    if (!payload.ok()) return Close(payload.status());
    if (!*payload) break;
    ++progress_;
    if (!decoder_.has_tails()) {
      events->on_frame(**payload);
    } else if (absl::Status status = BeginTail(*events, **payload);
               !status.ok()) {
      return Close(status);
    }
  }
  if (!closed_ && !closing_) WatchHalfFrame();
}

absl::Status FrameConnection::BeginTail(const Events& events,
                                        absl::string_view head) {
  const uint64_t bytes = decoder_.tail_bytes_left();
  SHERD_ASSIGN_OR_RETURN(std::vector<absl::Span<std::byte>> tail,
                         events.on_head(head, bytes));
  if (closed_ || closing_ || bytes == 0) return absl::OkStatus();
  if (!tail.empty() && TotalBytes(tail) != bytes) {
    return absl::InternalError(absl::StrCat("on_head: expected ", bytes,
                                            " bytes of memory, got ",
                                            TotalBytes(tail)));
  }
  in_tail_ = true;
  tail_ = std::move(tail);
  if (tail_.empty()) decoder_.TakeTail(bytes);
  // Bytes that arrived together with the head.
  for (AdvanceTail(0); !tail_.empty();) {
    const absl::Span<std::byte> to = tail_[tail_at_];
    const absl::string_view from = decoder_.TakeTail(to.size());
    if (from.empty()) break;
    std::memcpy(to.data(), from.data(), from.size());
    AdvanceTail(from.size());
  }
  return absl::OkStatus();
}

// `size` bytes have been written to the tail's memory.
void FrameConnection::AdvanceTail(size_t size) {
  while (tail_at_ < tail_.size() && size >= tail_[tail_at_].size()) {
    size -= tail_[tail_at_++].size();
  }
  if (tail_at_ < tail_.size()) {
    tail_[tail_at_].remove_prefix(size);
  } else {
    tail_.clear();
    tail_at_ = 0;
  }
}

void FrameConnection::WatchHalfFrame() {
  if (decoder_.buffered_bytes() == 0 && decoder_.tail_bytes_left() == 0) {
    if (half_frame_timer_) loop_->Cancel(*half_frame_timer_);
    half_frame_timer_.reset();
    return;
  }
  if (half_frame_timer_ || options_.frame_timeout == absl::InfiniteDuration()) {
    return;
  }
  half_frame_timer_ = loop_->RunAt(
      Deadline::After(options_.frame_timeout).when(),
      [self = shared_from_this(), before = progress_] {
        self->half_frame_timer_.reset();
        if (self->progress_ != before || self->IsPaused()) {
          return self->WatchHalfFrame();
        }
        self->Close(absl::DeadlineExceededError(absl::StrCat(
            "half a frame, ", self->decoder_.buffered_bytes(),
            " bytes, and no more for ",
            absl::FormatDuration(self->options_.frame_timeout),
            self->in_tail_
                ? absl::StrCat("; expected ", self->decoder_.tail_bytes_left(),
                               " bytes of its tail")
                : "")));
      });
}

void FrameConnection::Close(const absl::Status& why) {
  if (closed_) return;
  closed_ = true;
  const std::shared_ptr<FrameConnection> self = shared_from_this();
  loop_->Unwatch(fd_);
  if (half_frame_timer_) loop_->Cancel(*half_frame_timer_);
  if (close_timer_) loop_->Cancel(*close_timer_);
  tail_.clear();
  std::list<Outgoing> sent;
  std::list<Outgoing> unsent;
  {
    absl::MutexLock lock(&mutex_);
    token_ = 0;
    sent.swap(sent_);
    unsent = DropQueue();
    socket_.Reset();
  }
  // `why` may be a member of the object that ends here.
  const absl::Status reason = closing_ ? *closing_ : why;
  const absl::Status not_sent =
      reason.ok() ? absl::CancelledError("closed before the frame left")
                  : reason;
  Report(sent, absl::OkStatus());
  Report(unsent, not_sent);
  const std::shared_ptr<const Events> events = std::move(events_);
  if (events != nullptr) events->on_closed(reason);
}

void FrameConnection::CloseGently(const absl::Status& why,
                                  absl::Duration limit) {
  if (closed_ || closing_) return;
  const std::shared_ptr<FrameConnection> self = shared_from_this();
  if (broken_) return Close(why);
  closing_ = why;
  tail_.clear();
  tail_at_ = 0;
  if (half_frame_timer_) loop_->Cancel(*half_frame_timer_);
  half_frame_timer_.reset();
  if (limit != absl::InfiniteDuration()) {
    close_timer_ = loop_->RunAt(Deadline::After(limit).when(),
                                [self, why] { self->Close(why); });
  }
  {
    absl::MutexLock lock(&mutex_);
    end_after_sending_ = true;
  }
  if (absl::Status status = Flush(); !status.ok()) Close(status);
}

}  // namespace sherd
