#ifndef SHERD_BACKENDS_SHM_WAITING_H_
#define SHERD_BACKENDS_SHM_WAITING_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/shm/segment.h"
#include "sherd/core/process/process_handle.h"

namespace sherd::internal {

// How a rank's membership in the group ended. The first fate is final.
struct ShmFate {
  enum Kind : uint8_t { kNone = 0, kLeft = 1, kAborted = 2, kFailed = 3 };

  Kind kind = kNone;
  // For kFailed: the code that its operation returned, and the rank that it
  // named.
  sherd_code code = SHERD_OK;
  int peer = -1;
  // The first collective that it did not complete, modulo 2^32.
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

// A rank's waits for other ranks: it yields its core for at most 100 µs, then
// sleeps, and checks every 25 ms whether its peers live.
//
// No process holds a lock here, so a process may be killed at any point: a rank
// publishes with plain stores, and threads that sleep on its futex have counted
// themselves in its `sleepers`.
//
// Threads. Safe from any thread.
class ShmWaiting {
 public:
  // `yields_at_once`: there are more ranks than cores, so that polling without
  // yielding keeps a peer from running.
  ShmWaiting(const ShmSegment& segment, int rank, bool yields_at_once);

  // Starts to watch the other ranks' processes.
  void WatchPeers();

  // Makes this rank's stores visible to those that wait for it.
  void Publish() const { WakeSleepers(own()); }

  // Wakes those that wait for `peer`, including threads of this process that
  // wait for one another.
  void PublishFor(int peer) const { WakeSleepers(segment_.rank(peer)); }

  // Sets this rank's fate, unless it is set already, and wakes all ranks. Sets
  // fate.operation.
  void Seal(ShmFate fate) const;

  // Records that this rank has completed collective number `operation`.
  void SetCompleted(uint64_t operation) {
    completed_.store(operation, std::memory_order_release);
  }

  struct Limits {
    int64_t deadline;
    // The collective that waits, to which all ranks have to come; 0 for
    // messages, which involve two ranks.
    uint64_t operation;
  };

  // Returns once `ready()` is true, which `peer` brings about. `ready` may
  // consume what it finds: it returns true once only, and that takes precedence
  // over every failure.
  //   SHERD_TIMEOUT    The deadline passed; names the rank that is furthest
  //                    behind.
  //   SHERD_PEER_LOST  `peer`, or a rank that has not come to the operation,
  //                    died, left, aborted, or failed.
  //   SHERD_ABORTED    This rank's own fate is set.
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

  // Returns SHERD_PEER_LOST if `peer` failed or aborted: data that was read in
  // its process may then be invalid.
  sherd_code CheckPeer(int peer, sherd_error_v0* error) const;

  // Returns SHERD_PEER_LOST if a rank came to `operation` but will not complete
  // it.
  sherd_code CheckPeers(uint64_t operation, sherd_error_v0* error) const {
    return segment_.disturbances().load(std::memory_order_acquire) == 0
               ? SHERD_OK
               : FindFailedPeer(operation, error);
  }

  // Returns SHERD_ABORTED or SHERD_TIMEOUT, as Await, but without waiting: for
  // operations whose data is always ready.
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
  // The addition of 0 orders earlier stores before the check of `sleepers`: a
  // waiter either is counted here, or sees those stores.
  static void WakeSleepers(ShmRank& rank) {
    if (rank.sleepers.fetch_add(0, std::memory_order_acq_rel) != 0) Wake(rank);
  }
  static void Wake(ShmRank& rank);

  sherd_code AwaitLong(int peer, const Limits& limits, Condition ready,
                       sherd_error_v0* error) const;
  // Returns false if nothing happened before `until`.
  bool Sleep(int peer, int64_t until, uint32_t disturbances,
             Condition ready) const;
  // The error that ends the wait; SHERD_OK if it may continue.
  sherd_code FindFailure(int peer, const Limits& limits, bool look_for_dead,
                         Condition ready, sherd_error_v0* error) const;
  sherd_code FindFailedPeer(uint64_t operation, sherd_error_v0* error) const;
  sherd_code CheckDeadline(int peer, const Limits& limits,
                           sherd_error_v0* error) const;
  sherd_code ReportOwn(sherd_error_v0* error) const;
  sherd_code ReportFate(int peer, const ShmFate& fate,
                        sherd_error_v0* error) const;
  bool HasCome(int rank, uint64_t operation) const;
  // The rank that is furthest behind in `operation`; `peer` if there are
  // several.
  int FindLast(int peer, uint64_t operation) const;

  const ShmSegment& segment_;
  const int rank_;
  const int looks_;
  std::unique_ptr<ProcessHandle[]> peers_;
  std::atomic<uint64_t> completed_{0};
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_WAITING_H_
