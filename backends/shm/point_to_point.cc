#include "sherd/backends/shm/point_to_point.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "sherd/backends/plugin.h"
#include "sherd/backends/shm/copy.h"
#include "sherd/core/process/process_memory.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

// The permission of a receiver to the sender of a message that it took.
enum ShmGrant : uint32_t {
  kNotGranted = 0,
  kFromTheStart = 1,   // of an empty ring
  kFromPrefilled = 2,  // the prefilled bytes are still in it
};

enum ShmVerdict : uint32_t { kPending = 0, kReceived = 1, kRefused = 2 };

sherd_code FailSizes(sherd_error_v0* error, int peer, const char* verb,
                     uint64_t theirs, const char* own_verb, uint64_t own) {
  char text[160];
  std::snprintf(text, sizeof(text), "%s %llu bytes, this rank %s %llu", verb,
                static_cast<unsigned long long>(theirs), own_verb,
                static_cast<unsigned long long>(own));
  return Fail(error, SHERD_INVALID_ARGUMENT, peer, text);
}

// Messages of these lengths are read out of the sender's process.
constexpr uint64_t kDirectMinBytes = 4 << 10;
constexpr uint64_t kDirectMaxBytes = 2 << 20;

}  // namespace

ShmPointToPoint::ShmPointToPoint(const ShmSegment& segment,
                                 const ShmWaiting& waiting, int rank)
    : segment_(segment),
      waiting_(waiting),
      rank_(rank),
      peers_(std::make_unique<Peer[]>(segment.ranks())) {}

sherd_code ShmPointToPoint::Send(const sherd_op_v0& op, sherd_error_v0* error) {
  int index = -1;
  sherd_code code = waiting_.Await(
      op.root, {op.deadline, 0}, [&] { return (index = TryPrepare(op)) >= 0; },
      error);
  if (code != SHERD_OK) return code;
  code = Offer(op, index, error);
  Release(op.root, index);
  return code;
}

int ShmPointToPoint::TryPrepare(const sherd_op_v0& op) {
  Peer& peer = peers_[op.root];
  std::lock_guard<std::mutex> lock(peer.send_mutex);
  const int index = std::countr_one(peer.used);
  if (index >= kMessagesPerLane) return -1;
  const bool direct =
      op.bytes >= kDirectMinBytes && op.bytes <= kDirectMaxBytes &&
      segment_.RanksReadEachOther() && readable_.Contains(op.in, op.bytes);
  const bool alone = peer.used == 0;
  peer.used |= uint32_t{1} << index;
  ShmLane& lane = segment_.lane(rank_, op.root);
  ShmMessage& message = lane.messages[index];
  message.tag = op.tag;
  message.bytes = op.bytes;
  message.order = ++peer.order;
  message.address = direct ? reinterpret_cast<uintptr_t>(op.in) : 0;
  message.prefilled = 0;
  message.filled.store(0, std::memory_order_relaxed);
  message.drained.store(0, std::memory_order_relaxed);
  message.grant.store(kNotGranted, std::memory_order_relaxed);
  message.verdict.store(kPending, std::memory_order_relaxed);
  if (op.bytes <= kInlineBytes) {
    if (op.bytes > 0) std::memcpy(message.payload, op.in, op.bytes);
  } else if (alone && !direct) {
    // No other thread uses the ring, nor can begin to before the lock is free.
    message.prefilled = std::min<uint64_t>(op.bytes, segment_.ring_bytes());
    Fill(op, 0, message.prefilled);
    lane.prefilled.store(index + 1, std::memory_order_relaxed);
  }
  return index;
}

void ShmPointToPoint::Release(int to, int index) {
  std::lock_guard<std::mutex> lock(peers_[to].send_mutex);
  peers_[to].used &= ~(uint32_t{1} << index);
}

sherd_code ShmPointToPoint::Offer(const sherd_op_v0& op, int index,
                                  sherd_error_v0* error) {
  ShmLane& lane = segment_.lane(rank_, op.root);
  const uint32_t bit = uint32_t{1} << index;
  lane.offered.fetch_or(bit, std::memory_order_release);
  waiting_.Publish();
  const sherd_code code = Serve(op, lane.messages[index], error);
  // An offer of an operation that failed must not be taken later.
  if (code != SHERD_OK) lane.offered.fetch_and(~bit);
  return code;
}

sherd_code ShmPointToPoint::Serve(const sherd_op_v0& op, ShmMessage& message,
                                  sherd_error_v0* error) {
  const ShmWaiting::Limits limits = {op.deadline, 0};
  uint64_t filled = 0;
  bool granted = false;
  const auto may_fill = [&] {
    if (!granted) {
      return message.grant.load(std::memory_order_acquire) != kNotGranted;
    }
    const uint64_t drained = message.drained.load(std::memory_order_acquire);
    return filled < op.bytes &&
           filled - drained <= segment_.ring_bytes() - piece_bytes();
  };
  for (;;) {
    sherd_code code = waiting_.Await(
        op.root, limits,
        [&] {
          return message.verdict.load(std::memory_order_acquire) != kPending ||
                 may_fill();
        },
        error);
    if (code == SHERD_OK) code = waiting_.Check(op.root, limits, error);
    if (code != SHERD_OK) return code;
    const uint32_t verdict = message.verdict.load(std::memory_order_acquire);
    if (verdict == kReceived) return SHERD_OK;
    if (verdict == kRefused) {
      return FailSizes(error, op.root, "expects", message.expected_bytes,
                       "sends", op.bytes);
    }
    if (!granted) {
      granted = true;
      const bool goes_on =
          message.grant.load(std::memory_order_relaxed) == kFromPrefilled;
      filled = goes_on ? message.prefilled : 0;
      continue;
    }
    const uint64_t bytes = std::min(piece_bytes(), op.bytes - filled);
    Fill(op, filled, bytes);
    filled += bytes;
    message.filled.store(filled, std::memory_order_release);
    waiting_.Publish();
  }
}

void ShmPointToPoint::Fill(const sherd_op_v0& op, uint64_t filled,
                           uint64_t bytes) {
  // Pieces divide the ring, so that none wraps.
  std::memcpy(segment_.ring(rank_, op.root) + filled % segment_.ring_bytes(),
              static_cast<const unsigned char*>(op.in) + filled, bytes);
}

sherd_code ShmPointToPoint::Receive(const sherd_op_v0& op,
                                    sherd_error_v0* error) {
  int index = -1;
  const sherd_code code = waiting_.Await(
      op.root, {op.deadline, 0}, [&] { return (index = TryTake(op)) >= 0; },
      error);
  return code == SHERD_OK ? Accept(op, index, error) : code;
}

int ShmPointToPoint::TryTake(const sherd_op_v0& op) {
  ShmLane& lane = segment_.lane(op.root, rank_);
  if (lane.offered.load(std::memory_order_acquire) == 0) return -1;
  std::lock_guard<std::mutex> lock(peers_[op.root].take_mutex);
  uint32_t offered = lane.offered.load(std::memory_order_acquire);
  int oldest = -1;
  for (uint32_t left = offered; left != 0; left &= left - 1) {
    const int index = std::countr_zero(left);
    const ShmMessage& message = lane.messages[index];
    if (message.tag != op.tag) continue;
    if (oldest < 0 || message.order < lane.messages[oldest].order) {
      oldest = index;
    }
  }
  if (oldest < 0) return -1;
  const uint32_t bit = uint32_t{1} << oldest;
  // The sender may have withdrawn it.
  offered = lane.offered.fetch_and(~bit, std::memory_order_acq_rel);
  return (offered & bit) != 0 ? oldest : -1;
}

sherd_code ShmPointToPoint::Accept(const sherd_op_v0& op, int index,
                                   sherd_error_v0* error) {
  ShmMessage& message = segment_.lane(op.root, rank_).messages[index];
  if (message.bytes != op.bytes) {
    const uint64_t sent = message.bytes;
    message.expected_bytes = op.bytes;
    Conclude(message, kRefused);
    return FailSizes(error, op.root, "sends", sent, "expects", op.bytes);
  }
  if (op.bytes <= kInlineBytes) {
    if (op.bytes > 0) std::memcpy(op.out, message.payload, op.bytes);
    Conclude(message, kReceived);
    return SHERD_OK;
  }
  if (message.address != 0) return Read(op, message, error);
  std::atomic<bool>& busy = peers_[op.root].ring_busy;
  sherd_code code = waiting_.Await(
      op.root, {op.deadline, 0},
      [&] { return !busy.exchange(true, std::memory_order_acquire); }, error);
  if (code != SHERD_OK) return code;
  code = Empty(op, index, error);
  busy.store(false, std::memory_order_release);
  waiting_.PublishFor(op.root);
  return code;
}

sherd_code ShmPointToPoint::Read(const sherd_op_v0& op, ShmMessage& message,
                                 sherd_error_v0* error) {
  const int number = ReadProcessMemory(segment_.rank(op.root).pid,
                                       message.address, op.out, op.bytes);
  // A sender that gave up may have freed its buffer, or used it for something
  // else.
  const sherd_code code = waiting_.CheckPeer(op.root, error);
  if (code != SHERD_OK) return code;
  if (number != 0) return FailToRead(error, op.root, number);
  Conclude(message, kReceived);
  return SHERD_OK;
}

sherd_code ShmPointToPoint::Empty(const sherd_op_v0& op, int index,
                                  sherd_error_v0* error) {
  ShmLane& lane = segment_.lane(op.root, rank_);
  ShmMessage& message = lane.messages[index];
  const bool prefilled = lane.prefilled.load(std::memory_order_relaxed) ==
                         static_cast<uint32_t>(index) + 1;
  // This overwrites the beginning of another message in the ring.
  lane.prefilled.store(0, std::memory_order_relaxed);
  const uint64_t given = prefilled ? message.prefilled : 0;
  if (given < op.bytes) {
    message.grant.store(prefilled ? kFromPrefilled : kFromTheStart,
                        std::memory_order_release);
    waiting_.Publish();
  }
  const unsigned char* const ring = segment_.ring(op.root, rank_);
  const ShmWaiting::Limits limits = {op.deadline, 0};
  for (uint64_t drained = 0; drained < op.bytes;) {
    const uint64_t bytes = std::min(piece_bytes(), op.bytes - drained);
    sherd_code code = waiting_.Await(
        op.root, limits,
        [&] {
          return std::max(given,
                          message.filled.load(std::memory_order_acquire)) >=
                 drained + bytes;
        },
        error);
    if (code == SHERD_OK) code = waiting_.Check(op.root, limits, error);
    if (code != SHERD_OK) return code;
    Copy(static_cast<unsigned char*>(op.out) + drained,
         ring + drained % segment_.ring_bytes(), bytes,
         op.bytes >= kStreamedBytes);
    drained += bytes;
    message.drained.store(drained, std::memory_order_release);
    if (drained < op.bytes) waiting_.Publish();
  }
  Conclude(message, kReceived);
  return SHERD_OK;
}

void ShmPointToPoint::Conclude(ShmMessage& message, uint32_t verdict) {
  message.verdict.store(verdict, std::memory_order_release);
  waiting_.Publish();
}

}  // namespace sherd::internal
