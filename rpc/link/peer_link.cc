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
                         .on_sent = std::move(message.on_sent),
                         .may_wait = message.may_wait};
  frame.head.insert(0, 1, static_cast<char>(Addressee::kHandler));
  const bool bulk = message.bulk && has_bulk_;
  // The other one carries the heartbeats.
  if (bulk) control_.Connect();
  absl::Status status = (bulk ? bulk_ : control_).Send(std::move(frame));
  if (status.ok() || ErrorRank(status)) return status;
  // This worker leaves.
  if (absl::IsFailedPrecondition(status)) return WithRank(status, rank_);
  // It broke, and the loop has not noticed yet.
  return Lost(status.message());
}

LinkChannel* PeerLink::OnHello(const LinkMessage::Hello& hello,
                               LinkMessage::HelloReply* reply) {
  LinkChannel& channel = hello.bulk() ? bulk_ : control_;
  if (says_goodbye_ && channel.IsClosed()) {
    reply->set_outcome(LinkMessage::HelloReply::LEAVING);
    return nullptr;
  }
  if (state_ != State::kAlive) {
    reply->set_outcome(LinkMessage::HelloReply::REFUSED);
    reply->set_why(absl::StrCat(label(), " is lost there, and stays so"));
    return nullptr;
  }
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
  const bool was_heard = control_.TakeProgress();
  const bool was_active = control_.TakeActivity();
  // Heartbeats end with the first half of a goodbye.
  const bool may_be_silent = !control_.IsOpen() && !heard_goodbye_;
  if (was_heard || bulk_.TakeProgress() || was_asleep || may_be_silent) {
    last_heard_ = now;
  }
  const absl::Duration silence = absl::FromChrono(now - last_heard_);
  if (silence >= context_.patience) {
    return OnBroken(absl::DeadlineExceededError(absl::StrCat(
        "it sent nothing for ", absl::FormatDuration(context_.patience))));
  }
  // A child of it may keep its sockets open.
  if (silence > context_.heartbeat &&
      context_.directory->StateOfWorker(rank_) == ProcessState::kEnded) {
    return OnBroken(absl::UnavailableError(""));
  }
  // The lower rank sends, and the higher one answers: then the answers to a
  // worker with many links arrive together, and wake it once.
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
  // The goodbye is the last message.
  if (says_goodbye_) return;
  LinkMessage message;
  LinkMessage::LostNotice& notice = *message.mutable_lost_notice();
  notice.set_rank(rank);
  notice.set_why(std::string(cause));
  control_.SendLinkMessage(message);
}

void PeerLink::SayGoodbye() {
  says_goodbye_ = true;
  // Others learn of its end from the store.
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

void PeerLink::OnEnd(LinkChannel& channel, LinkChannel::End end,
                     const absl::Status& why) {
  if (end == LinkChannel::End::kNoMeans) owner_.OnNotReached(rank_, why);
  if (state_ != State::kAlive) return;
  if (end == LinkChannel::End::kBroken) OnBroken(why);
  if (end == LinkChannel::End::kGoodbye) OnGoodbye(channel);
  if (end != LinkChannel::End::kParted) return;
  if (!control_.IsClosed() || !bulk_.IsClosed()) return;
  state_ = State::kEnded;
  owner_.OnEnded(rank_, End::kParted, absl::OkStatus(), absl::OkStatus());
}

// An answer to a message on the bulk connection may be the first message on
// the other one, and would not be sent again. A bulk message is a request or
// its reply, and its call is notified if it fails.
LinkChannel* PeerLink::OpenBeside(const LinkChannel& channel) {
  return &channel == &control_ && bulk_.IsOpen() ? &bulk_ : nullptr;
}

void PeerLink::OnBroken(const absl::Status& why) {
  if (heard_goodbye_) return Finish(HasLeft(), absl::OkStatus());
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

void PeerLink::OnGoodbye(LinkChannel& channel) {
  heard_goodbye_ = true;
  channel.Close(HasLeft());
  const LinkChannel& other = &channel == &control_ ? bulk_ : control_;
  // Its own goodbye follows.
  if (!other.IsOpen()) Finish(HasLeft(), absl::OkStatus());
}

absl::Status PeerLink::Unavailable(absl::string_view what) const {
  return WithFailedRank(absl::UnavailableError(absl::StrCat(label(), what)),
                        rank_);
}

absl::Status PeerLink::HasLeft() const {
  return Unavailable(" has said goodbye");
}

absl::Status PeerLink::Lost(absl::string_view cause) const {
  return Unavailable(absl::StrCat(" is lost: ", cause));
}

void PeerLink::Finish(const absl::Status& why, const absl::Status& cause) {
  state_ = State::kEnded;
  CloseBoth(why);
  owner_.OnEnded(rank_, cause.ok() ? End::kLeft : End::kLost, why, cause);
}

void PeerLink::CloseBoth(const absl::Status& why) {
  control_.Close(why);
  bulk_.Close(why);
}

}  // namespace sherd::internal
