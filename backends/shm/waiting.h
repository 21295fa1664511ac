#ifndef SHERD_BACKENDS_SHM_WAITING_H_
#define SHERD_BACKENDS_SHM_WAITING_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/shm/segment.h"
#include "sherd/core/process/process_handle.h"

namespace sherd::internal {

// How a rank's part in the group ended. The first fate is final.
struct ShmFate {
  enum Kind : uint8_t { kNone = 0, kLeft = 1, kAborted = 2, kFailed = 3 };

  Kind kind = kNone;
  // Of kFailed: what its operation returned, and whom it blamed.
  sherd_code code = SHERD_OK;
  int peer = -1;
  // The first collective that it did not see through, modulo 2^32.
  uint32_t operation = 0;

  uint64_t Pack() const {
    return kind | static_cast<uint64_t>(code) << 8 |
           static_cast<uint64_t>(peer + 1) << 16 |
           static_cast<uint64_t>(operation) << 32;
  }
  static ShmFate Unpack(uint64_t word) {
    return {static_cast<Kind>(word & 0xff),
            static_cast<sherd_code>(word >> 8 & 0xff),
            static_cast<int>(word >> 16 & 0xffff) - 1,
            static_cast<uint32_t>(word >> 32)};
  }
};

// A rank's side of waiting for others: it yields its core for at most 100 µs,
// then sleeps, and looks every 25 ms whether its peers live.
//
// Nothing here is held by anybody, so that a process may be killed at any
// point: a rank publishes with plain stores, and those who sleep over its
// futex have said so in its `sleepers`.
//
// Threads. Safe from any thread.
class ShmWaiting {
 public:
  // `yields_at_once`: there are more ranks than cores, so that looking again
  // without yielding keeps a peer from running.
  ShmWaiting(const ShmSegment& segment, int rank, bool yields_at_once);

  // Starts to watch the other ranks' processes.
  void WatchPeers();

  // Makes what this rank stored visible to those who wait for it.
  void Publish() const { WakeSleepers(own()); }

  // Wakes those who wait for `peer`, among them threads of this process that
  // wait for one another.
  void PublishFor(int peer) const { WakeSleepers(segment_.rank(peer)); }

  // Seals this rank's fate, unless it is sealed, and wakes everybody.
  // fate.operation is set here.
  void Seal(ShmFate fate) const;

  // This rank has seen collective number `operation` through.
  void SetCompleted(uint64_t operation) {
    completed_.store(operation, std::memory_order_release);
  }

  struct Limits {
    int64_t deadline;
    // The collective that is waited in, whose ranks all have to come; 0 for
    // messages, which concern two.
    uint64_t operation;
  };

  // Returns once `ready()`, which `peer` is to bring about. It may take what it
  // finds: true is asked for once only, and wins over every failure.
  //   SHERD_TIMEOUT    The deadline passed; names the rank that is furthest
  //                    behind.
  //   SHERD_PEER_LOST  `peer`, or a rank that has not come to the operation,
  //                    died, left, aborted, or failed.
  //   SHERD_ABORTED    This rank's own fate is sealed.
  template <typename Ready>
  sherd_code Await(int peer, const Limits& limits, const Ready& ready,
                   sherd_error_v0* error) const {
    for (int i = 0; i < looks_; ++i) {
      if (ready()) return SHERD_OK;
      Relax();
    }
    bool held = false;
    const auto hold = [&held, &ready] { return held = held || ready(); };
    if (hold()) return SHERD_OK;
    const auto holds = [](const void* context) {
      return (*static_cast<decltype(&hold)>(context))();
    };
    const sherd_code code = AwaitLong(peer, limits, {holds, &hold}, error);
    return held ? SHERD_OK : code;
  }

  // SHERD_PEER_LOST if `peer` failed or aborted: what was read in its process
  // may then be anything.
  sherd_code CheckPeer(int peer, sherd_error_v0* error) const;

  // SHERD_PEER_LOST if a rank came to `operation`, but will not see it through.
  sherd_code CheckPeers(uint64_t operation, sherd_error_v0* error) const {
    return segment_.disturbances().load(std::memory_order_acquire) == 0
               ? SHERD_OK
               : FindFailedPeer(operation, error);
  }

  // SHERD_ABORTED or SHERD_TIMEOUT, as Await, but without waiting: for
  // operations in which everything is always ready.
  sherd_code Check(int peer, const Limits& limits, sherd_error_v0* error) const;

 private:
  struct Condition {
    bool (*holds)(const void*);
    const void* context;
    bool operator()() const { return holds(context); }
  };

  static void Relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  ShmRank& own() const { return segment_.rank(rank_); }
  // The addition of nothing orders what was stored before with the look at
  // `sleepers`: a waiter either is seen here, or sees what was stored.
  static void WakeSleepers(ShmRank& rank) {
    if (rank.sleepers.fetch_add(0, std::memory_order_acq_rel) != 0) Wake(rank);
  }
  static void Wake(ShmRank& rank);

  sherd_code AwaitLong(int peer, const Limits& limits, Condition ready,
                       sherd_error_v0* error) const;
  // False if nothing came until `until`.
  bool Sleep(int peer, int64_t until, uint32_t disturbances,
             Condition ready) const;
  // What speaks against waiting longer; SHERD_OK if nothing does.
  sherd_code FindFailure(int peer, const Limits& limits, bool look_for_dead,
                         Condition ready, sherd_error_v0* error) const;
  sherd_code FindFailedPeer(uint64_t operation, sherd_error_v0* error) const;
  sherd_code CheckDeadline(int peer, const Limits& limits,
                           sherd_error_v0* error) const;
  sherd_code ReportOwn(sherd_error_v0* error) const;
  sherd_code ReportFate(int peer, const ShmFate& fate,
                        sherd_error_v0* error) const;
  bool HasCome(int rank, uint64_t operation) const;
  // The rank that is furthest behind in `operation`, `peer` if several are.
  int FindLast(int peer, uint64_t operation) const;

  const ShmSegment& segment_;
  const int rank_;
  const int looks_;
  std::unique_ptr<ProcessHandle[]> peers_;
  std::atomic<uint64_t> completed_{0};
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_WAITING_H_
