#ifndef SHERD_RPC_LINK_WIRE_H_
#define SHERD_RPC_LINK_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"

namespace sherd::internal {

// A message from one worker to another.
struct WireMessage {
  // Read by the receiver as a whole. At most Wire::kMaxControlBytes.
  std::string control;
  // Sent along without a copy, and received where the receiver wants it. Valid
  // until on_sent.
  std::vector<absl::Span<const std::byte>> tail;
  // Called exactly once for a message that Send took: with OK when the system
  // has its last byte, or with why the connection ended before; then the other
  // worker may have received it, a part of it, or nothing; or with IsUnsent. It
  // runs on a sending thread, before Send returns, or on a thread of the wire,
  // without a lock; it must not block. May be null.
  std::function<void(const absl::Status&)> on_sent;
  // The message is large, and others need not wait for it: between hosts it
  // goes by a second connection, and is not ordered with messages that are not
  // bulk. These use the second one too while theirs cannot be made.
  bool bulk = false;
  // Others may follow closely; see OutgoingFrame.
  bool may_wait = false;

  // Whether on_sent reports that the message was dropped because this process
  // lacks the resources for a connection, so that the worker is not lost:
  // kResourceExhausted with its rank. An error that breaks a connection has no
  // rank, and the loss follows.
  static bool IsUnsent(const absl::Status& end) {
    return absl::IsResourceExhausted(end) && ErrorRank(end).has_value();
  }
};

// Messages to the other workers of a job, whose ranks are 0 to W-1, and reports
// of workers that are lost.
class Wire {
 public:
  static constexpr size_t kMaxControlBytes = size_t{4} << 20;

  // Receives messages and losses. One thread at a time, which runs the loop,
  // calls it, also while the wire is being started; no method may block. All of
  // them may call Send.
  class Handler {
   public:
    virtual ~Handler() = default;

    // A message of worker `from`, `control` valid during the call, followed by
    // `tail_bytes`, maybe 0, of tail. Returns where these go: memory that is
    // written to until OnTail, or until OnLost or OnLeft for that worker,
    // together `tail_bytes` long, or nothing: then they are dropped. `ticket`
    // is passed to OnTail. An error ends the connection, and the worker is
    // lost.
    virtual absl::StatusOr<std::vector<absl::Span<std::byte>>> OnControl(
        int from, absl::string_view control, uint64_t tail_bytes,
        uint64_t* ticket) = 0;

    // The tail of the message with that ticket has arrived, or was dropped. Not
    // called for a tail of 0 bytes.
    virtual void OnTail(int from, uint64_t ticket) = 0;

    // Worker `worker` is lost, for good: its process ended, its connection
    // broke without a goodbye, it is silent for too long, or it cannot be
    // reached. At most once for each, and the last call about it.
    virtual void OnLost(int worker, const absl::Status& why) = 0;

    // The worker said goodbye, which is not a loss: it sends nothing more, and
    // will not answer. In place of OnLost. For a worker without a connection
    // this is found when something is sent to it.
    virtual void OnLeft(int /*worker*/, const absl::Status& /*why*/) {}
  };

  virtual ~Wire() = default;

  virtual int rank() const = 0;
  // By rank.
  virtual const std::vector<std::string>& names() const = 0;

  // Sends `message` to another worker, or queues it: while the first connection
  // to it is made, or earlier messages have not gone out.
  // Messages of one thread to one worker arrive in the order of sending, each
  // once, unless the worker is lost; see WireMessage::bulk.
  //
  // Errors name the worker and carry its rank. on_sent is not called.
  //   kUnavailable         The worker is lost or said goodbye; with the reason.
  //   kFailedPrecondition  This worker has said goodbye.
  //   kInvalidArgument     `to` is not another worker, or `control` is too
  //                        long.
  //
  // Threads. Any; never blocks.
  // Cost. With nothing queued, one sendmsg on the caller's thread, for messages
  // that waited together with it.
  virtual absl::Status Send(int to, WireMessage message) = 0;

  // Ends this worker's part: sends what is queued, notifies all connected
  // workers, and closes. Returns once they know. The handler is not notified of
  // losses that follow from it. Idempotent; where several threads call it, it
  // ends by the earliest of their deadlines, with one outcome for all.
  //   kDeadlineExceeded  Names the workers that did not receive all of it by
  //                      then; their connections are cut.
  // Threads. Any but the loop's.
  virtual absl::Status Goodbye(Deadline deadline) = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_LINK_WIRE_H_
