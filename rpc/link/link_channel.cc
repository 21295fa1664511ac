#include "sherd/rpc/link/link_channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

using Memory = std::vector<absl::Span<std::byte>>;
using rpc::LinkMessage;

// Pause before the next attempt, if the other end closed before it answered,
// and if it makes the connection itself.
constexpr absl::Duration kPause = absl::Milliseconds(50);
constexpr absl::Duration kPauseForTheOther = absl::Seconds(1);

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("malformed message of a link: ", what));
}

absl::Status ThisOneLeaves() {
  return absl::FailedPreconditionError("this worker has said goodbye");
}

template <typename Sender>
void SendAll(std::vector<OutgoingFrame> frames, Sender& sender) {
  for (OutgoingFrame& frame : frames) {
    const auto on_sent = frame.on_sent;
    const absl::Status status = sender.Send(std::move(frame));
    if (!status.ok() && on_sent) on_sent(status);
  }
}

}  // namespace

std::string LinkHead(const LinkMessage& message) {
  std::string head(1, static_cast<char>(Addressee::kLink));
  message.AppendToString(&head);
  return head;
}

absl::StatusOr<LinkMessage> ParseLinkHead(absl::string_view head,
                                          uint64_t tail_bytes) {
  LinkMessage message;
  if (head.empty() || head[0] != static_cast<char>(Addressee::kLink) ||
      tail_bytes != 0 ||
      !message.ParseFromArray(head.data() + 1,
                              static_cast<int>(head.size()) - 1)) {
    return Malformed("expected one between links");
  }
  return message;
}

LinkChannel::LinkChannel(const LinkContext& context, Link& link, int rank,
                         bool bulk)
    : context_(context), link_(link), rank_(rank), bulk_(bulk) {}

absl::Status LinkChannel::Send(OutgoingFrame frame) {
  std::shared_ptr<FrameConnection> connection;
  {
    absl::MutexLock lock(&mutex_);
    if (!why_.ok()) return why_;
    if (state_ == State::kOpen) {
      connection = connection_;
    } else {
      waiting_.push_back(std::move(frame));
    }
  }
  if (connection == nullptr) {
    Connect();
    return absl::OkStatus();
  }
  is_active_.store(true, std::memory_order_relaxed);
  // NOLINTNEXTLINE(bugprone-use-after-move): without a connection only.
  const absl::Status status = connection->Send(std::move(frame));
  if (status.ok()) return status;
  // The reason of a close meanwhile is more precise.
  absl::MutexLock lock(&mutex_);
  return why_.ok() ? status : why_;
}

void LinkChannel::Connect() {
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kIdle) return;
    state_ = State::kConnecting;
  }
  context_.loop->Post([this] { Dial(); });
}

bool LinkChannel::TakeProgress() {
  if (connection_ == nullptr) return false;
  const uint64_t progress = connection_->progress();
  return std::exchange(progress_, progress) != progress;
}

void LinkChannel::SendLinkMessage(const LinkMessage& message) {
  // If that fails, the end of the connection follows.
  if (connection_ != nullptr) {
    connection_->Send({.head = LinkHead(message)}).IgnoreError();
  }
}

void LinkChannel::Dial() {
  if (state() != State::kConnecting || candidate_ != nullptr) return;
  if (dial_deadline_.IsInfinite()) {
    dial_deadline_ = Deadline::After(context_.patience);
  }
  const Directory& directory = *context_.directory;
  const bool is_unix = directory.RouteBetween(directory.rank(), rank_) ==
                       Directory::Route::kUnix;
  const Directory::Worker& worker = directory.worker(rank_);
  if (const absl::Status status =
          MaybeInjectFault({.point = FaultPoint::kRpcBeforeConnecting,
                            .rank = directory.rank(),
                            .subject = worker.name});
      !status.ok()) {
    return Fail(status);
  }
  const HostPort& where = is_unix ? worker.unix_address : worker.tcp_address;
  const auto check = [directory = context_.directory, rank = rank_] {
    if (directory->HasLeft(rank)) {
      return absl::CancelledError("it has said goodbye");
    }
    if (directory->StateOfWorker(rank) == ProcessState::kEnded) {
      return absl::AbortedError(directory->EndOfWorker(rank));
    }
    return absl::OkStatus();
  };
  context_.dialer->Start(
      {.where = {.host = where.host,
                 .port = where.port,
                 .protocol = kLinkProtocol,
                 .secret = context_.secret,
                 .deadline = dial_deadline_},
       .check = check,
       .done = [this, loop = context_.loop](absl::StatusOr<UniqueFd> socket) {
         // Tasks are copied.
         const auto shared =
             std::make_shared<absl::StatusOr<UniqueFd>>(std::move(socket));
         loop->Post([this, shared] { OnDialed(std::move(*shared)); });
       }});
}

void LinkChannel::OnDialed(absl::StatusOr<UniqueFd> socket) {
  // The other's connection came first, or the channel is closed.
  if (state() != State::kConnecting) return;
  absl::Status status = socket.status();
  if (status.ok()) status = Introduce(*std::move(socket));
  if (!status.ok()) Fail(status);
}

void LinkChannel::Fail(const absl::Status& why) {
  StopConnecting();
  dial_deadline_ = Deadline::Infinite();
  if (absl::IsCancelled(why)) return link_.OnEnd(*this, End::kGoodbye, why);
  if (!absl::IsResourceExhausted(why)) {
    return link_.OnEnd(*this, End::kBroken, why);
  }
  const absl::Status named =
      WithRank(Annotate(why, context_.directory->Label(rank_)), rank_);
  Drop(State::kIdle, named, link_.OpenBeside(*this));
  link_.OnEnd(*this, End::kNoMeans, named);
  if (says_goodbye_) Part();
}

absl::Status LinkChannel::Introduce(UniqueFd socket) {
  candidate_ = FrameConnection::Create(context_.loop, std::move(socket),
                                       context_.connection);
  FrameConnection* const raw = candidate_.get();
  absl::Status status = raw->Start(
      {.on_head =
           [this, raw](absl::string_view head, uint64_t tail_bytes) {
             return OnHead(raw, head, tail_bytes);
           },
       .on_tail = [this, raw] { OnTail(raw); },
       .on_closed = [this,
                     raw](const absl::Status& why) { OnClosed(raw, why); }});
  if (!status.ok()) {
    candidate_ = nullptr;
    return status;
  }
  const Directory& directory = *context_.directory;
  SHERD_RETURN_IF_ERROR(
      MaybeInjectFault({.point = FaultPoint::kRpcBeforeHello,
                        .rank = directory.rank(),
                        .subject = directory.worker(rank_).name}));
  LinkMessage message;
  LinkMessage::Hello& hello = *message.mutable_hello();
  hello.set_rank(directory.rank());
  hello.set_name(directory.self().name);
  hello.set_nonce(directory.self().nonce);
  hello.set_to_rank(rank_);
  hello.set_to_nonce(directory.worker(rank_).nonce);
  hello.set_bulk(bulk_);
  // Not given up before: the other end may accept it late, and would take its
  // end for the loss of this worker.
  timer_ = context_.loop->RunAt(dial_deadline_.when(), [this] {
    timer_.reset();
    if (candidate_ == nullptr) return;
    candidate_->Close(absl::DeadlineExceededError("it does not answer"));
  });
  // If that fails, the end of the connection follows.
  raw->Send({.head = LinkHead(message)}).IgnoreError();
  return absl::OkStatus();
}

absl::Status LinkChannel::OnReply(const LinkMessage& message) {
  if (!message.has_hello_reply()) return Malformed("expected a reply");
  const LinkMessage::HelloReply& reply = message.hello_reply();
  const std::shared_ptr<FrameConnection> candidate = candidate_;
  switch (reply.outcome()) {
    case LinkMessage::HelloReply::ACCEPTED:
      if (reply.nonce() != context_.directory->worker(rank_).nonce) {
        Fail(absl::FailedPreconditionError(
            "another worker answers at its address"));
        return absl::OkStatus();
      }
      Open(candidate);
      return absl::OkStatus();
    case LinkMessage::HelloReply::REDUNDANT:
      DialAgainAfter(kPauseForTheOther,
                     absl::DeadlineExceededError("it does not connect"));
      return absl::OkStatus();
    case LinkMessage::HelloReply::LEAVING:
      Fail(absl::CancelledError("it has said goodbye"));
      return absl::OkStatus();
    case LinkMessage::HelloReply::REFUSED:
      Fail(absl::FailedPreconditionError(absl::StrCat(
          "it refuses this worker: ", PrintableLine(reply.why()))));
      return absl::OkStatus();
    default:
      return Malformed("unknown reply");
  }
}

void LinkChannel::DialAgainAfter(absl::Duration pause,
                                 const absl::Status& why) {
  StopConnecting();
  if (says_goodbye_ && !HasWaiting()) return Part();
  if (dial_deadline_.HasPassed()) return Fail(why);
  timer_ = context_.loop->RunAt(Deadline::After(pause).when(), [this] {
    timer_.reset();
    Dial();
  });
}

void LinkChannel::StopConnecting() {
  if (timer_) context_.loop->Cancel(*timer_);
  timer_.reset();
  // Its end no longer concerns this channel.
  const std::shared_ptr<FrameConnection> candidate = std::move(candidate_);
  candidate_ = nullptr;
  if (candidate != nullptr)
    candidate->Close(absl::CancelledError("not needed"));
}

bool LinkChannel::Wants(const LinkMessage::Hello& hello) const {
  switch (state()) {
    case State::kIdle:
      return true;
    case State::kConnecting:
      return candidate_ == nullptr || hello.rank() < context_.directory->rank();
    default:
      return false;
  }
}

void LinkChannel::Open(std::shared_ptr<FrameConnection> connection) {
  if (candidate_ == connection) candidate_ = nullptr;
  StopConnecting();
  dial_deadline_ = Deadline::Infinite();
  // Not under the lock, since on_sent may send. Messages sent meanwhile are
  // queued, so that they do not overtake.
  for (bool is_open = false; !is_open;) {
    std::vector<OutgoingFrame> frames;
    {
      absl::MutexLock lock(&mutex_);
      frames.swap(waiting_);
      is_open = frames.empty();
      state_ = is_open ? State::kOpen : State::kConnecting;
      if (is_open) connection_ = connection;
    }
    SendAll(std::move(frames), *connection);
  }
  link_.OnOpen(*this);
  if (says_goodbye_) SayGoodbye();
}

void LinkChannel::SayGoodbye() {
  says_goodbye_ = true;
  {
    absl::MutexLock lock(&mutex_);
    why_ = ThisOneLeaves();
  }
  if (connection_ == nullptr) {
    // Wait until it is open, if messages are queued, or if the other end may
    // have accepted it: that end waits for a goodbye.
    if (!HasWaiting() && candidate_ == nullptr) Part();
    return;
  }
  LinkMessage message;
  message.mutable_goodbye();
  // Runs on the loop thread too, if that sends.
  const auto on_sent = [connection = connection_](const absl::Status& status) {
    // Until the other end has it; Goodbye has a deadline.
    if (status.ok()) {
      connection->CloseGently(absl::CancelledError("goodbye"),
                              absl::InfiniteDuration());
    }
  };
  // If that fails, the end of the connection follows.
  const std::shared_ptr<FrameConnection> connection = connection_;
  connection->Send({.head = LinkHead(message), .on_sent = on_sent})
      .IgnoreError();
}

void LinkChannel::Part() {
  Close(ThisOneLeaves());
  link_.OnEnd(*this, End::kParted, absl::OkStatus());
}

void LinkChannel::Drop(State state, const absl::Status& why,
                       LinkChannel* other) {
  std::vector<OutgoingFrame> frames;
  std::shared_ptr<FrameConnection> connection;
  {
    absl::MutexLock lock(&mutex_);
    state_ = state;
    if (state == State::kClosed && !says_goodbye_) why_ = why;
    frames.swap(waiting_);
    connection.swap(connection_);
  }
  if (other != nullptr) SendAll(std::exchange(frames, {}), *other);
  for (OutgoingFrame& frame : frames) {
    if (frame.on_sent) frame.on_sent(why);
  }
  if (connection != nullptr) connection->Close(why);
}

void LinkChannel::Close(const absl::Status& why) {
  StopConnecting();
  Drop(State::kClosed, why);
}

absl::StatusOr<Memory> LinkChannel::OnHead(FrameConnection* from,
                                           absl::string_view head,
                                           uint64_t tail_bytes) {
  if (from != candidate_.get() && from != connection_.get()) return Memory();
  if (from == connection_.get() && !head.empty() &&
      head[0] == static_cast<char>(Addressee::kHandler)) {
    return context_.handler->OnControl(rank_, head.substr(1), tail_bytes,
                                       &ticket_);
  }
  SHERD_ASSIGN_OR_RETURN(const LinkMessage message,
                         ParseLinkHead(head, tail_bytes));
  if (from == candidate_.get()) {
    SHERD_RETURN_IF_ERROR(OnReply(message));
  } else if (message.has_goodbye()) {
    link_.OnEnd(*this, End::kGoodbye, absl::OkStatus());
  } else {
    SHERD_RETURN_IF_ERROR(link_.OnMessage(message));
  }
  return Memory();
}

void LinkChannel::OnTail(FrameConnection* from) {
  if (from == connection_.get()) context_.handler->OnTail(rank_, ticket_);
}

void LinkChannel::OnClosed(FrameConnection* from, const absl::Status& why) {
  if (from == candidate_.get()) {
    candidate_ = nullptr;
    // A peer that sent malformed data is not tried again.
    if (!absl::IsUnavailable(why) && !absl::IsDeadlineExceeded(why)) {
      return Fail(why);
    }
    return DialAgainAfter(kPause, why);
  }
  if (from != connection_.get()) return;
  if (says_goodbye_ && absl::IsCancelled(why)) return Part();
  absl::Status cause = why;
  if (absl::IsUnavailable(why)) {
    cause = absl::UnavailableError(
        absl::StrCat(why.message(), " without a goodbye"));
  } else if (absl::IsResourceExhausted(why)) {
    // The resources that the other end lacks: this process lacks none.
    cause = absl::UnavailableError(why.message());
  }
  link_.OnEnd(*this, End::kBroken, cause);
}

}  // namespace sherd::internal
