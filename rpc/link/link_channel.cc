#include "sherd/rpc/link/link_channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

using Memory = std::vector<absl::Span<std::byte>>;
using rpc::LinkMessage;

// Until the next attempt, if the other end closed before it answered, and if it
// wants to make the connection itself.
constexpr absl::Duration kPause = absl::Milliseconds(50);
constexpr absl::Duration kPauseForTheOther = absl::Seconds(1);

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("what came is not a message of this version: ", what));
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
  bool must_connect = false;
  absl::Status status = outbox_.Send(std::move(frame), &must_connect);
  if (must_connect) context_.loop->Post([this] { Dial(); });
  return status;
}

void LinkChannel::Connect() {
  if (outbox_.Await()) context_.loop->Post([this] { Dial(); });
}

void LinkChannel::SendLinkMessage(const LinkMessage& message) {
  outbox_.SendIfOpen({.head = LinkHead(message)});
}

void LinkChannel::Dial() {
  if (!IsConnecting() || candidate_ != nullptr) return;
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
  // The other one came first, or it is closed.
  if (!IsConnecting()) return;
  absl::Status status = socket.status();
  if (status.ok()) status = Introduce(*std::move(socket));
  if (!status.ok()) Fail(status);
}

void LinkChannel::Fail(const absl::Status& why) {
  StopConnecting();
  dial_deadline_ = Deadline::Infinite();
  if (absl::IsCancelled(why)) return link_.OnGoodbye(*this);
  if (!absl::IsResourceExhausted(why)) return link_.OnBroken(*this, why);
  outbox_.StopWaiting(why);
  link_.OnNoMeans(*this, why);
  if (parting_ != Parting::kNo) Part();
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
       .on_closed = [this, raw](const absl::Status& why) { OnEnd(raw, why); }});
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
  timer_ = context_.loop->RunAt(
      Deadline::Earlier(dial_deadline_, Deadline::After(kHelloTimeout)).when(),
      [this] {
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
            "what answers at its address is not this worker"));
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
      Fail(absl::FailedPreconditionError(
          absl::StrCat("it refuses this worker: ", reply.why())));
      return absl::OkStatus();
    default:
      return Malformed("unknown reply");
  }
}

void LinkChannel::DialAgainAfter(absl::Duration pause,
                                 const absl::Status& why) {
  StopConnecting();
  if (dial_deadline_.HasPassed()) return Fail(why);
  timer_ = context_.loop->RunAt(Deadline::After(pause).when(), [this] {
    timer_.reset();
    Dial();
  });
}

void LinkChannel::StopConnecting() {
  if (timer_) context_.loop->Cancel(*timer_);
  timer_.reset();
  // So that its end is nobody's.
  const std::shared_ptr<FrameConnection> candidate = std::move(candidate_);
  candidate_ = nullptr;
  if (candidate != nullptr)
    candidate->Close(absl::CancelledError("not needed"));
}

bool LinkChannel::Wants(const LinkMessage::Hello& hello) const {
  switch (outbox_.state()) {
    case ChannelQueue::State::kIdle:
      return true;
    case ChannelQueue::State::kAwaiting:
      return candidate_ == nullptr || hello.rank() < context_.directory->rank();
    default:
      return false;
  }
}

void LinkChannel::Open(std::shared_ptr<FrameConnection> connection) {
  if (candidate_ == connection) candidate_ = nullptr;
  StopConnecting();
  dial_deadline_ = Deadline::Infinite();
  connection_ = connection;
  outbox_.Open(std::move(connection));
  link_.OnOpen(*this);
  if (parting_ == Parting::kWanted) SayGoodbye();
}

void LinkChannel::SayGoodbye() {
  parting_ = Parting::kWanted;
  if (connection_ == nullptr) {
    // Until it is open, if something is to be sent.
    if (!IsConnecting() || outbox_.IsEmpty()) Part();
    return;
  }
  LinkMessage message;
  message.mutable_goodbye();
  // On the loop thread too, which sends.
  const auto on_sent = [this,
                        connection = connection_](const absl::Status& status) {
    // Otherwise it is closed.
    if (!status.ok()) return;
    parting_ = Parting::kSaid;
    context_.loop->Post([connection] {
      connection->CloseGently(absl::CancelledError("goodbye"));
    });
  };
  outbox_.SendIfOpen({.head = LinkHead(message), .on_sent = on_sent});
}

void LinkChannel::Part() {
  Close(absl::FailedPreconditionError("this worker has said goodbye"));
  link_.OnClosed(*this);
}

void LinkChannel::Close(const absl::Status& why) {
  StopConnecting();
  outbox_.Close(why);
  const std::shared_ptr<FrameConnection> connection = std::move(connection_);
  connection_ = nullptr;
  in_tail_ = false;
  if (connection != nullptr) connection->Close(why);
}

absl::StatusOr<Memory> LinkChannel::OnHead(FrameConnection* from,
                                           absl::string_view head,
                                           uint64_t tail_bytes) {
  if (from != candidate_.get() && from != connection_.get()) return Memory();
  link_.OnHeard();
  if (from == connection_.get() && !head.empty() &&
      head[0] == static_cast<char>(Addressee::kHandler)) {
    in_tail_ = tail_bytes > 0;
    return context_.handler->OnControl(rank_, head.substr(1), tail_bytes,
                                       &ticket_);
  }
  SHERD_ASSIGN_OR_RETURN(const LinkMessage message,
                         ParseLinkHead(head, tail_bytes));
  if (from == candidate_.get()) {
    SHERD_RETURN_IF_ERROR(OnReply(message));
  } else if (message.has_goodbye()) {
    link_.OnGoodbye(*this);
  } else {
    SHERD_RETURN_IF_ERROR(link_.OnMessage(message));
  }
  return Memory();
}

void LinkChannel::OnTail(FrameConnection* from) {
  if (from != connection_.get()) return;
  in_tail_ = false;
  link_.OnHeard();
  context_.handler->OnTail(rank_, ticket_);
}

void LinkChannel::OnEnd(FrameConnection* from, const absl::Status& why) {
  if (from == candidate_.get()) {
    candidate_ = nullptr;
    // One that sends nonsense will not do better.
    if (!absl::IsUnavailable(why) && !absl::IsDeadlineExceeded(why)) {
      return Fail(why);
    }
    return DialAgainAfter(kPause, why);
  }
  if (from != connection_.get()) return;
  connection_ = nullptr;
  in_tail_ = false;
  if (parting_ == Parting::kSaid) return Part();
  link_.OnBroken(*this, absl::IsUnavailable(why)
                            ? absl::UnavailableError(absl::StrCat(
                                  why.message(), " without a goodbye"))
                            : why);
}

}  // namespace sherd::internal
