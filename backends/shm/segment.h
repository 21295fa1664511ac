#ifndef SHERD_BACKENDS_SHM_SEGMENT_H_
#define SHERD_BACKENDS_SHM_SEGMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sherd/backends/backend_abi.h"
#include "sherd/core/process/shared_segment.h"

namespace sherd::internal {

inline constexpr size_t kCacheLine = 64;
inline constexpr int kMaxShmRanks = 1024;

// Payloads up to this size are part of the line that announces the call.
inline constexpr size_t kInlineBytes = 96;

// One rank's call of a collective, written when it arrives there. Each rank has
// two, used in turn: when a rank writes the next but one call, all others have
// arrived at the next and have finished reading this one.
struct alignas(kCacheLine) ShmArrival {
  // Number of the operation since the group was created, from 1. Stored last.
  std::atomic<uint64_t> operation;
  uint64_t call;  // CallSignature::kind
  uint64_t bytes;
  // Longest entry of sends and recvs, and flags.
  uint64_t longest;
  unsigned char payload[kInlineBytes];
};
// Set if all entries have the length of the longest.
inline constexpr uint64_t kEvenEntries = uint64_t{1} << 63;
// Set if others are to read the rank's data in its process: its payload, or for
// entries its outbox, contains addresses.
inline constexpr uint64_t kReadDirectly = uint64_t{1} << 62;
inline constexpr uint64_t kLengthMask = kReadDirectly - 1;

static_assert(sizeof(ShmArrival) == 2 * kCacheLine);

// The state of one rank, as the others see it.
struct alignas(kCacheLine) ShmRank {
  // Rounds of collectives that the rank has reached since the group was
  // created.
  std::atomic<uint64_t> round;
  // A futex that counts the rank's publications while others slept on it.
  alignas(kCacheLine) std::atomic<uint32_t> event;
  // Number of threads that sleep, or are about to. A killed process leaves its
  // threads counted, at the cost of superfluous wakes.
  std::atomic<uint32_t> sleepers;
  alignas(kCacheLine) std::atomic<uint64_t> fate;  // ShmFate
  int64_t pid;
  uint64_t start_time;
  // The address of the group's nonce in its process, and whether it has read
  // those of all others.
  uint64_t nonce_address;
  std::atomic<uint32_t> reads_others;
};

// A message that a sender offers on a lane.
struct alignas(kCacheLine) ShmMessage {
  // Written by the sender.
  int64_t tag;
  uint64_t bytes;
  uint64_t order;
  // Address in the sender's process, if the receiver is to read it there; or 0.
  uint64_t address;
  uint64_t prefilled;            // bytes in the lane's ring when offered
  std::atomic<uint64_t> filled;  // bytes put into the ring since the grant
  // Written by the receiver, cleared by the sender before the offer.
  alignas(kCacheLine) std::atomic<uint64_t> drained;
  std::atomic<uint32_t> grant;    // ShmGrant
  std::atomic<uint32_t> verdict;  // ShmVerdict
  uint64_t expected_bytes;        // of the receive that refused it
  alignas(kCacheLine) unsigned char payload[kInlineBytes];
};

inline constexpr int kMessagesPerLane = 32;

// Messages from one rank to another.
struct alignas(kCacheLine) ShmLane {
  // Bit i is set if messages[i] is offered and not yet taken.
  std::atomic<uint32_t> offered;
  // 1 + index of the message whose beginning is already in the ring, or 0.
  std::atomic<uint32_t> prefilled;
  ShmMessage messages[kMessagesPerLane];
};

// The memory that the ranks of one group share.
//
// Layout. A header, then per rank: its state (ShmRank), two arrivals, two lists
// of 2 P lengths, two outboxes of box_bytes() each, two results of half that
// size; then per ordered pair of ranks a lane and its ring. A rank writes only
// its own parts, except for lanes, whose fields name their writers. Untouched
// pages cost nothing but addresses: about 22 MiB with 8 ranks.
//
// See SharedSegment for how it is shared and released.
class ShmSegment {
 public:
  ShmSegment() = default;
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  // Creates the memory for a group of `ranks`, and the descriptor fd() by which
  // others open it.
  sherd_code Create(int ranks, uint64_t nonce, sherd_error_v0* error);

  // Opens the memory that process `pid` created and has open as descriptor
  // `fd`.
  //   SHERD_UNSUPPORTED  The system does not let this process open it.
  //   SHERD_INTERNAL     It is not the memory that Create() made for `ranks`
  //                      and `nonce`.
  sherd_code Open(int64_t pid, int fd, int ranks, uint64_t nonce,
                  sherd_error_v0* error);

  // Others can no longer open the memory. It stays mapped.
  void CloseDescriptor() { shared_.CloseDescriptor(); }
  void Reset() { shared_ = SharedSegment(); }

  int fd() const { return shared_.fd(); }
  int ranks() const { return ranks_; }
  size_t box_bytes() const { return box_bytes_; }
  size_t ring_bytes() const { return ring_bytes_; }

  // Whether all ranks can read each other's processes.
  bool RanksReadEachOther() const;

  // Counts the fates that were set.
  std::atomic<uint32_t>& disturbances() const;
  ShmRank& rank(int rank) const { return ranks_begin_[rank]; }
  ShmArrival& arrival(uint64_t operation, int rank) const {
    return arrivals_[(operation & 1) * ranks_ + rank];
  }
  // P lengths of the rank's sends, then P of its receives.
  uint64_t* lengths(uint64_t operation, int rank) const {
    return lengths_ + ((operation & 1) * ranks_ + rank) * 2 * ranks_;
  }
  unsigned char* outbox(uint64_t round, int rank) const {
    return boxes_ + (2 * rank + (round & 1)) * box_bytes_;
  }
  unsigned char* result(uint64_t round, int rank) const {
    return results_ + (2 * rank + (round & 1)) * (box_bytes_ / 2);
  }
  ShmLane& lane(int from, int to) const { return lanes_[from * ranks_ + to]; }
  unsigned char* ring(int from, int to) const {
    return rings_ + (static_cast<size_t>(from) * ranks_ + to) * ring_bytes_;
  }

 private:
  struct Header;

  size_t Plan(int ranks);
  void FindParts();

  SharedSegment shared_;
  int ranks_ = 0;
  size_t box_bytes_ = 0;
  size_t ring_bytes_ = 0;
  size_t offsets_[7] = {};
  ShmRank* ranks_begin_ = nullptr;
  ShmArrival* arrivals_ = nullptr;
  uint64_t* lengths_ = nullptr;
  ShmLane* lanes_ = nullptr;
  unsigned char* boxes_ = nullptr;
  unsigned char* results_ = nullptr;
  unsigned char* rings_ = nullptr;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_SEGMENT_H_
