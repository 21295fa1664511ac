#include "sherd/rpc/link/peer_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sherd/core/base/error_info.h"

namespace sherd::internal {
namespace {

using rpc::LinkMessage;

// A process closes its sockets shortly before it counts as ended.
constexpr absl::Duration kEndOfProcess = absl::Milliseconds(100);
constexpr absl::Duration kLook = absl::Milliseconds(2);

}  // namespace

PeerLink::PeerLink(const LinkContext& context, Owner& owner, int rank)
    : context_(context),
      owner_(owner),
      rank_(rank),
      has_bulk_(context.directory->RouteBetween(
                    context.directory->rank(), rank) == Directory::Route::kTcp),
      control_(context, *this, rank, /*bulk=*/false),
      bulk_(context, *this, rank, /*bulk=*/true),
      last_heard_(Deadline::Clock::now()) {}

absl::Status PeerLink::Send(WireMessage message) {
  if (message.control.size() > Wire::kMaxControlBytes) {
    return WithRank(
        absl::InvalidArgumentError(absl::StrCat(
            "a message of ", message.control.size(), " bytes to ", label(),
            ", expected at most ", Wire::kMaxControlBytes)),
        rank_);
  }
  OutgoingFrame frame = {.head = std::move(message.control),
                         .tail = std::move(message.tail),
                         .on_sent = std::move(message.on_sent)};
  frame.head.insert(0, 1, static_cast<char>(Addressee::kHandler));
  const bool bulk = message.bulk && has_bulk_;
  // The other one carries the heartbeats.
  if (bulk) control_.Connect();
  absl::Status status = (bulk ? bulk_ : control_).Send(std::move(frame));
  if (status.ok() || ErrorRank(status)) return status;
  // It broke, and the loop has not looked into it yet.
  return Lost(status.message());
}

LinkChannel* PeerLink::OnHello(const LinkMessage::Hello& hello,
                               LinkMessage::HelloReply* reply) {
  if (state_ == State::kAlive && says_goodbye_) {
    reply->set_outcome(LinkMessage::HelloReply::LEAVING);
    return nullptr;
  }
  if (state_ != State::kAlive) {
    reply->set_outcome(LinkMessage::HelloReply::REFUSED);
    reply->set_why(absl::StrCat(label(), " is lost there, and stays so"));
    return nullptr;
  }
  LinkChannel& channel = hello.bulk() ? bulk_ : control_;
  if (!channel.Wants(hello)) {
    reply->set_outcome(LinkMessage::HelloReply::REDUNDANT);
    return nullptr;
  }
  reply->set_outcome(LinkMessage::HelloReply::ACCEPTED);
  reply->set_nonce(context_.directory->self().nonce);
  return &channel;
}

void PeerLink::Beat(Deadline::Clock::time_point now, bool was_asleep) {
  if (state_ != State::kAlive) return;
  const bool was_heard = std::exchange(was_heard_, false);
  const bool was_active = control_.TakeActivity();
  if (was_heard || was_asleep || control_.IsReceiving() || !control_.IsOpen()) {
    last_heard_ = now;
  }
  if (!control_.IsOpen()) return;
  const absl::Duration silence = absl::FromChrono(now - last_heard_);
  if (silence >= context_.patience) {
    return OnBroken(control_, absl::DeadlineExceededError(absl::StrCat(
                                  "it sent nothing for ",
                                  absl::FormatDuration(context_.patience))));
  }
  // What it had open may be held open by a child of it.
  if (silence > context_.heartbeat &&
      context_.directory->StateOfWorker(rank_) == ProcessState::kEnded) {
    return OnBroken(control_, absl::UnavailableError(""));
  }
  // The lower rank asks, and the higher one answers: then the answers to a
  // worker with many links come together, and wake it once.
  if (context_.directory->rank() < rank_ && !(was_heard && was_active)) {
    SendHeartbeat();
  }
}

void PeerLink::SendHeartbeat() {
  LinkMessage message;
  message.mutable_heartbeat();
  control_.SendLinkMessage(message);
}

void PeerLink::OnReportedLost(absl::string_view cause) {
  if (state_ != State::kAlive || control_.IsOpen() || bulk_.IsOpen()) return;
  Lose(absl::UnavailableError(cause));
}

void PeerLink::SendLostNotice(int rank, absl::string_view cause) {
  LinkMessage message;
  LinkMessage::LostNotice& notice = *message.mutable_lost_notice();
  notice.set_rank(rank);
  notice.set_why(std::string(cause));
  control_.SendLinkMessage(message);
}

void PeerLink::SayGoodbye() {
  says_goodbye_ = true;
  // Whoever looks for its end finds it.
  if (state_ != State::kAlive) return;
  control_.SayGoodbye();
  bulk_.SayGoodbye();
}

void PeerLink::Abandon() {
  state_ = State::kEnded;
  CloseBoth(absl::FailedPreconditionError("this worker has shut down"));
}

void PeerLink::OnOpen(LinkChannel& channel) {
  if (&channel != &control_) return;
  last_heard_ = Deadline::Clock::now();
  owner_.OnLinked(rank_);
}

absl::Status PeerLink::OnMessage(const LinkMessage& message) {
  if (message.has_lost_notice()) {
    owner_.OnLostNotice(rank_, message.lost_notice());
    return absl::OkStatus();
  }
  if (message.has_heartbeat()) {
    if (rank_ < context_.directory->rank()) SendHeartbeat();
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "a message between links that is not of this version");
}

void PeerLink::OnBroken(LinkChannel&, const absl::Status& why) {
  if (state_ != State::kAlive) return;
  if (heard_goodbye_) return Leave();
  state_ = State::kLooking;
  CloseBoth(Lost(why.message()));
  LookForEnd(why, Deadline::After(kEndOfProcess));
}

void PeerLink::LookForEnd(const absl::Status& why, Deadline deadline) {
  if (state_ != State::kLooking) return;
  const ProcessState state = context_.directory->StateOfWorker(rank_);
  if (state == ProcessState::kRunning && !deadline.HasPassed() &&
      !context_.directory->SharesProcess(rank_)) {
    context_.loop->RunAt(Deadline::After(kLook).when(),
                         [this, why, deadline] { LookForEnd(why, deadline); });
    return;
  }
  const std::string end = context_.directory->EndOfWorker(rank_);
  if (state == ProcessState::kEnded) {
    return Lose(absl::UnavailableError(end));
  }
  Lose(end.empty() ? why
                   : absl::Status(why.code(), absl::StrCat("it ", end, ": ",
                                                           why.message())));
}

void PeerLink::OnNoMeans(LinkChannel&, const absl::Status& why) {
  owner_.OnNotReached(rank_, Annotate(why, label()));
}

void PeerLink::OnGoodbye(LinkChannel& channel) {
  if (state_ != State::kAlive) return;
  heard_goodbye_ = true;
  channel.Close(WithFailedRank(
      absl::UnavailableError(absl::StrCat(label(), " has said goodbye")),
      rank_));
  const LinkChannel& other = &channel == &control_ ? bulk_ : control_;
  // Its own goodbye follows.
  if (!other.IsOpen()) Leave();
}

void PeerLink::OnClosed(LinkChannel&) {
  if (state_ != State::kAlive || !control_.IsClosed() || !bulk_.IsClosed()) {
    return;
  }
  state_ = State::kEnded;
  owner_.OnParted(rank_);
}

absl::Status PeerLink::Lost(absl::string_view cause) const {
  return WithFailedRank(
      absl::UnavailableError(absl::StrCat(label(), " is lost: ", cause)),
      rank_);
}

void PeerLink::Lose(const absl::Status& cause) {
  state_ = State::kEnded;
  const absl::Status why = Lost(cause.message());
  CloseBoth(why);
  owner_.OnLost(rank_, why, cause);
}

void PeerLink::Leave() {
  state_ = State::kEnded;
  const absl::Status why = WithFailedRank(
      absl::UnavailableError(absl::StrCat(label(), " has said goodbye")),
      rank_);
  CloseBoth(why);
  owner_.OnLeft(rank_, why);
}

void PeerLink::CloseBoth(const absl::Status& why) {
  control_.Close(why);
  bulk_.Close(why);
}

}  // namespace sherd::internal
