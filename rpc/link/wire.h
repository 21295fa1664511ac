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

// What one worker sends to another.
struct WireMessage {
  // What the message is; the receiver reads it as a whole. At most
  // Wire::kMaxControlBytes.
  std::string control;
  // Goes along without being copied, and to where the receiver wants it. Valid
  // until on_sent.
  std::vector<absl::Span<const std::byte>> tail;
  // Exactly once for a message that Send took: OK when the system has the last
  // byte of it, or why the connection ended before; then the other worker may
  // have received it, a part of it, or nothing; or IsUnsent. It runs on the
  // sending thread, before Send returns, or on a thread of the wire, without a
  // lock; it must not block. May be null.
  std::function<void(const absl::Status&)> on_sent;
  // It is large, and others need not wait for it: between hosts it takes a
  // connection of its own, and is not in order with those that are not bulk.
  // These take that one too while theirs cannot be made.
  bool bulk = false;

  // Whether on_sent says that it was dropped for lack of what a connection
  // needs, so that the worker is not lost: kResourceExhausted with its rank.
  // What breaks a connection has none, and is followed by the loss.
  static bool IsUnsent(const absl::Status& end) {
    return absl::IsResourceExhausted(end) && ErrorRank(end).has_value();
  }
};

// Messages to the other workers of a job, whose ranks are 0 to W-1, and word of
// those that are lost.
class Wire {
 public:
  static constexpr size_t kMaxControlBytes = size_t{4} << 20;

  // What comes from the others. One thread at a time, which runs the loop,
  // makes the calls, also while the wire is being started; none of them may
  // block. All of them may call Send.
  class Handler {
   public:
    virtual ~Handler() = default;

    // A message of worker `from`, `control` valid during the call, of whose
    // tail `tail_bytes`, maybe 0, follow. Returns where they go: memory that is
    // written to until OnTail, or until OnLost or OnLeft for that worker,
    // together `tail_bytes` long, or nothing: then they are dropped. `ticket`
    // is what OnTail is to be given. An error ends the connection: the worker
    // is lost with it.
    virtual absl::StatusOr<std::vector<absl::Span<std::byte>>> OnControl(
        int from, absl::string_view control, uint64_t tail_bytes,
        uint64_t* ticket) = 0;

    // The tail of the message with that ticket has come, or was dropped. Not
    // called for one of 0 bytes.
    virtual void OnTail(int from, uint64_t ticket) = 0;

    // Worker `worker` is lost: its process ended, its connection broke off
    // without a goodbye, it is silent for too long, or it cannot be reached.
    // At most once for each, and the last call about it. It stays lost.
    virtual void OnLost(int worker, const absl::Status& why) = 0;

    // It said goodbye, which is no loss: nothing more comes from it, and what
    // it has not answered it never will. In place of OnLost. Of a worker
    // without a connection this is found when something is sent to it.
    virtual void OnLeft(int /*worker*/, const absl::Status& /*why*/) {}
  };

  virtual ~Wire() = default;

  virtual int rank() const = 0;
  // By rank.
  virtual const std::vector<std::string>& names() const = 0;

  // Sends `message` to another worker, or queues it: while the worker is
  // connected to for the first time, or what was sent before has not gone out.
  // Messages of one thread to one worker arrive in the order of sending, each
  // once, unless the worker is lost; see WireMessage::bulk.
  //
  // Errors name the worker and carry its rank. on_sent is not called.
  //   kUnavailable         The worker is lost or said goodbye; why.
  //   kFailedPrecondition  This worker has said goodbye.
  //   kInvalidArgument     `to` is not another worker, or `control` is too
  //                        long.
  //
  // Threads. Any; never blocks.
  // Cost. With nothing queued, one sendmsg on the caller's thread.
  virtual absl::Status Send(int to, WireMessage message) = 0;

  // Ends the life of this worker in good order: sends what is queued, tells all
  // connected workers, and closes. Returns once they know. The handler hears of
  // no loss that follows from it. Idempotent; where several threads call it, it
  // ends by the earliest of their deadlines, with one outcome for all.
  //   kDeadlineExceeded  Names the workers that did not take all of it by then;
  //                      they are cut off.
  // Threads. Any but the loop's.
  virtual absl::Status Goodbye(Deadline deadline) = 0;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_LINK_WIRE_H_
