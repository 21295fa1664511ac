#ifndef SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_SEGMENT_H_
#define SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_SEGMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "sherd/testing/emulated_gpu/nccl/nccl_words.h"

namespace sherd::testing {

// A rank's record for the others when it joins.
struct NcclRankInfo {
  int64_t pid = 0;
  // Distinguishes the process from a later one with the same number.
  uint64_t start_time = 0;
  uint64_t host_hash = 0;
  int32_t device = 0;
  int32_t version = 0;
  char bus_id[32] = {};
};

// State of one split or shrink: `first` is its number once the rank has
// arrived, and `second` once `id` is set, in the block of the leading rank.
struct NcclControl {
  std::atomic<uint64_t> first, second;
  uint64_t hash;
  int32_t color, key;
  NcclUniqueId id;
};

struct NcclBoardEntry {
  std::atomic<uint64_t> sequence;
  NcclSignature signature;
};

enum class NcclFate : uint32_t { kLive = 0, kFinalized = 1, kAborted = 2 };

// Memory that all ranks of a communicator share; initially zero. It contains no
// locks, so that a process may be killed at any point.
struct alignas(64) NcclRankBlock {
  static constexpr uint64_t kBoardEntries = 64;

  // Counts events for the rank, which sleeps on it.
  std::atomic<uint32_t> bell;
  std::atomic<uint32_t> sleepers;
  std::atomic<uint32_t> claimed;
  std::atomic<uint32_t> joined;
  // Set to 1 by its first collective.
  std::atomic<uint32_t> connecting;
  std::atomic<NcclFate> fate;
  // The last collective that it began.
  std::atomic<uint64_t> collective;
  NcclRankInfo info;
  NcclControl split[2];
  NcclControl shrink;
  NcclBoardEntry board[kBoardEntries];
};

// Bytes in flight from one rank to another.
struct alignas(64) NcclChannel {
  std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) char bytes[(256 << 10) - 128];

  // As much as there is room for, or data; returns how much.
  size_t Write(const void* data, size_t size);
  size_t Read(void* data, size_t size);
};

enum class NcclTraffic { kCollective = 0, kPointToPoint = 1 };

// The memory that the ranks of one communicator share: anonymous (memfd),
// opened through the process that made the unique id, and freed with the last
// process.
//
// Threads. Safe from any thread, except where noted.
class NcclSegment {
 public:
  static constexpr int kMaxRanks = 1024;

  // As ncclGetUniqueId: the calling process must live until all ranks have
  // opened it. It keeps a descriptor until then, and forever if it is not one
  // of the ranks.
  static NcclResult MakeUniqueId(NcclUniqueId* id);

  // kNcclInvalidArgument  Not an id of MakeUniqueId.
  // kNcclRemoteError      Its process ended, or it was used before.
  // kNcclInvalidUsage     Other ranks called it with another number of ranks.
  static NcclResult Open(const NcclUniqueId& id, int num_ranks,
                         std::shared_ptr<NcclSegment>* segment);

  NcclSegment(const NcclSegment&) = delete;
  NcclSegment& operator=(const NcclSegment&) = delete;
  ~NcclSegment();

  int num_ranks() const { return num_ranks_; }
  NcclRankBlock& rank(int rank) const { return blocks_[rank]; }
  NcclChannel& channel(NcclTraffic traffic, int from, int to) const;

  // Wakes the rank, which then checks its condition again.
  void Ring(int rank) const;
  void RingAll() const;

  // Returns true once `ready()`, false once `ended()`; both are called often. A
  // rank that changes the state they read then rings the bell of `rank`.
  template <typename Ready, typename Ended>
  bool Await(int rank, const Ready& ready, const Ended& ended) const {
    for (int looks = 0;; ++looks) {
      const uint32_t seen = blocks_[rank].bell.load();
      if (ready()) return true;
      if (ended()) return false;
      Pause(rank, seen, looks);
    }
  }
  // Waits a little for the bell to leave `seen`.
  void Pause(int rank, uint32_t seen, int looks) const;

  // All ranks have joined: the id cannot be used again.
  void Complete() const;

  // A rank with contradicting arguments joined: the group will never be
  // complete.
  void Break() const;
  bool broken() const;

  // Keeps the first text reported by any rank.
  void SetMismatch(const std::string& text) const;
  // Empty while there is no mismatch.
  std::string mismatch() const;

  // Whether the process of a rank that joined ended.
  bool HasDied(int rank) const;

 private:
  struct Header;

  NcclSegment(Header* header, size_t bytes, int num_ranks);

  Header* const header_;
  const size_t bytes_;
  const int num_ranks_;
  NcclRankBlock* blocks_;
  NcclChannel* channels_;
};

// This process, for NcclRankInfo.
void DescribeOwnProcess(NcclRankInfo* info);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_NCCL_NCCL_SEGMENT_H_
