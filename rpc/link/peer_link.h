#ifndef SHERD_RPC_LINK_PEER_LINK_H_
#define SHERD_RPC_LINK_PEER_LINK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/deadline.h"
#include "sherd/rpc/link/link_channel.h"
#include "sherd/rpc/link/wire.h"
#include "sherd/rpc/rpc.pb.h"

namespace sherd::internal {

// This worker's link with one other: its connections, and whether the other is
// alive, lost or has left. Once it is lost or has left, it stays so.
//
// Threads. Send and Connect from any thread, the rest on the loop thread.
class PeerLink final : private LinkChannel::Link {
 public:
  enum class End { kLost, kLeft, kParted };

  // The worker's set of links; called on the loop thread.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void OnLinked(int rank) = 0;
    // Called once: it is lost, has left, or all is closed after this worker's
    // goodbye. `cause`: the part of `why` that describes a loss, with its code.
    virtual void OnEnded(int rank, End end, const absl::Status& why,
                         const absl::Status& cause) = 0;
    // It cannot be reached now, for a reason of this process.
    virtual void OnNotReached(int rank, const absl::Status& why) = 0;
    virtual void OnLostNotice(int from,
                              const rpc::LinkMessage::LostNotice& notice) = 0;
  };

  PeerLink(const LinkContext& context, Owner& owner, int rank);

  // As Wire::Send.
  absl::Status Send(WireMessage message);
  // Connects, if it is not connected.
  void Connect() { control_.Connect(); }

  // Answers a hello that names this worker: returns the channel that takes the
  // connection, or null.
  LinkChannel* OnHello(const rpc::LinkMessage::Hello& hello,
                       rpc::LinkMessage::HelloReply* reply);

  // Called once per heartbeat. `was_asleep`: this process has not run for a
  // while, and cannot know who was silent.
  void Beat(Deadline::Clock::time_point now, bool was_asleep);

  // Others reported it lost, or this worker saw it otherwise. Ignored while
  // there is a connection, whose own end is better evidence.
  void OnReportedLost(absl::string_view cause);
  void SendLostNotice(int rank, absl::string_view cause);

  void SayGoodbye();
  bool HasEnded() const { return state_ == State::kEnded; }
  // Closes at once, and makes no more calls.
  void Abandon();

 private:
  enum class State { kAlive, kLooking, kEnded };

  void OnOpen(LinkChannel& channel) override;
  absl::Status OnMessage(const rpc::LinkMessage& message) override;
  void OnEnd(LinkChannel& channel, LinkChannel::End end,
             const absl::Status& why) override;
  LinkChannel* OpenBeside(const LinkChannel& channel) override;

  std::string label() const { return context_.directory->Label(rank_); }
  absl::Status Unavailable(absl::string_view what) const;
  absl::Status HasLeft() const;
  absl::Status Lost(absl::string_view cause) const;
  void OnBroken(const absl::Status& why);
  void OnGoodbye(LinkChannel& channel);
  // Checks until `deadline` whether the process has ended.
  void LookForEnd(const absl::Status& why, Deadline deadline);
  // Without `cause`: it left.
  void Finish(const absl::Status& why, const absl::Status& cause);
  void Lose(const absl::Status& cause) { Finish(Lost(cause.message()), cause); }
  void CloseBoth(const absl::Status& why);
  void SendHeartbeat();

  const LinkContext& context_;
  Owner& owner_;
  const int rank_;
  const bool has_bulk_;
  LinkChannel control_;
  LinkChannel bulk_;

  State state_ = State::kAlive;
  bool says_goodbye_ = false;
  bool heard_goodbye_ = false;
  // When it last showed that it is alive, to the precision of beats.
  Deadline::Clock::time_point last_heard_;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_LINK_PEER_LINK_H_
