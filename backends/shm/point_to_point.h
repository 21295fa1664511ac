#ifndef SHERD_BACKENDS_SHM_POINT_TO_POINT_H_
#define SHERD_BACKENDS_SHM_POINT_TO_POINT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/shm/direct_read.h"
#include "sherd/backends/shm/segment.h"
#include "sherd/backends/shm/waiting.h"

namespace sherd::internal {

// One rank's messages to and from the others.
//
// A sender offers a message on the lane to its receiver and waits; a receive
// takes the oldest offer with its tag and notifies the sender before it
// returns. Short payloads are part of the offer; the receiver reads those of
// medium length in the sender's process, if the system permits it; longer ones
// pass through the lane's ring: the sender fills it, at once if the ring is
// idle, otherwise when the receiver grants it, and the receiver empties it.
//
// Threads. Any number at a time, with one limit: while kMessagesPerLane
// messages from one rank to another are offered, further sends of this pair
// wait for the first of them to end.
class ShmPointToPoint {
 public:
  ShmPointToPoint(const ShmSegment& segment, const ShmWaiting& waiting,
                  int rank);

  // Returns once the receiver has the whole message.
  //   SHERD_INVALID_ARGUMENT  The receive with this tag expects another size.
  //   others                  As for ShmWaiting::Await.
  sherd_code Send(const sherd_op_v0& op, sherd_error_v0* error);

  // Returns once op.out has the message.
  //   SHERD_INVALID_ARGUMENT  The message has another size; nothing was
  //                           written to op.out.
  //   others                  As for ShmWaiting::Await.
  sherd_code Receive(const sherd_op_v0& op, sherd_error_v0* error);

 private:
  // This process's own state of the two lanes to and from a peer.
  struct Peer {
    std::mutex send_mutex;
    uint32_t used = 0;  // messages of the lane to the peer
    uint64_t order = 0;
    std::mutex take_mutex;
    // Set by the receive that is emptying the ring.
    std::atomic<bool> ring_busy{false};
  };

  // Index of a free message, now filled in for `op`, or -1.
  int TryPrepare(const sherd_op_v0& op);
  void Release(int to, int index);
  sherd_code Offer(const sherd_op_v0& op, int index, sherd_error_v0* error);
  // Takes part in the transfer of an offer until it ends.
  sherd_code Serve(const sherd_op_v0& op, ShmMessage& message,
                   sherd_error_v0* error);
  void Fill(const sherd_op_v0& op, uint64_t filled, uint64_t bytes);

  // Index of the oldest offer from op.root with op.tag, which is now taken, or
  // -1.
  int TryTake(const sherd_op_v0& op);
  sherd_code Accept(const sherd_op_v0& op, int index, sherd_error_v0* error);
  sherd_code Read(const sherd_op_v0& op, ShmMessage& message,
                  sherd_error_v0* error);
  sherd_code Empty(const sherd_op_v0& op, int index, sherd_error_v0* error);
  void Conclude(ShmMessage& message, uint32_t verdict);

  uint64_t piece_bytes() const { return segment_.ring_bytes() / 4; }

  const ShmSegment& segment_;
  const ShmWaiting& waiting_;
  const int rank_;
  std::unique_ptr<Peer[]> peers_;
  ReadableMemory readable_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_POINT_TO_POINT_H_
