#include "sherd/backends/shm/waiting.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

constexpr int64_t kYieldNanoseconds = 100'000;
// How long a death may stay unnoticed.
constexpr int64_t kSleepNanoseconds = 25'000'000;
// Polls before the first yield if every rank has a core: some µs.
constexpr int kLooks = 100;

int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void FutexWake(std::atomic<uint32_t>& word) {
  // Not FUTEX_PRIVATE_FLAG: the sleepers are other processes.
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// False at the time `until`.
bool FutexWait(std::atomic<uint32_t>& word, uint32_t value, int64_t until) {
  timespec time;
  time.tv_sec = until / 1'000'000'000;
  time.tv_nsec = until % 1'000'000'000;
  // With WAIT_BITSET the time is a point of CLOCK_MONOTONIC.
  return syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, value, &time, nullptr,
                 FUTEX_BITSET_MATCH_ANY) == 0 ||
         errno != ETIMEDOUT;
}

}  // namespace

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
                  std::atomic<uint64_t>::is_always_lock_free,
              "shared between processes");

ShmWaiting::ShmWaiting(const ShmSegment& segment, int rank, bool yields_at_once)
    : segment_(segment),
      rank_(rank),
      looks_(yields_at_once ? 0 : kLooks),
      peers_(std::make_unique<ProcessHandle[]>(segment.ranks())) {}

void ShmWaiting::WatchPeers() {
  for (int r = 0; r < segment_.ranks(); ++r) {
    if (r == rank_) continue;
    peers_[r].Watch({segment_.rank(r).pid, segment_.rank(r).start_time});
  }
}

void ShmWaiting::Wake(ShmRank& rank) {
  rank.event.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(rank.event);
}

void ShmWaiting::Seal(ShmFate fate) const {
  fate.operation =
      static_cast<uint32_t>(completed_.load(std::memory_order_acquire) + 1);
  uint64_t none = 0;
  own().fate.compare_exchange_strong(none, fate.Pack());
  segment_.disturbances().fetch_add(1);
  for (int r = 0; r < segment_.ranks(); ++r) WakeSleepers(segment_.rank(r));
}

sherd_code ShmWaiting::Check(int peer, const Limits& limits,
                             sherd_error_v0* error) const {
  if (own().fate.load(std::memory_order_relaxed) != 0) return ReportOwn(error);
  return CheckDeadline(peer, limits, error);
}

sherd_code ShmWaiting::CheckPeer(int peer, sherd_error_v0* error) const {
  const ShmFate fate = ShmFate::Unpack(segment_.rank(peer).fate.load());
  return fate.kind == ShmFate::kAborted || fate.kind == ShmFate::kFailed
             ? ReportFate(peer, fate, error)
             : SHERD_OK;
}

sherd_code ShmWaiting::FindFailedPeer(uint64_t operation,
                                      sherd_error_v0* error) const {
  if (own().fate.load() != 0) return ReportOwn(error);
  for (int r = 0; r < segment_.ranks(); ++r) {
    const ShmFate fate = ShmFate::Unpack(segment_.rank(r).fate.load());
    if (fate.kind != ShmFate::kAborted && fate.kind != ShmFate::kFailed) {
      continue;
    }
    // The difference of compared numbers is small, so that they may wrap.
    const auto later =
        static_cast<int32_t>(fate.operation - static_cast<uint32_t>(operation));
    if (later <= 0) return ReportFate(r, fate, error);
  }
  return SHERD_OK;
}

sherd_code ShmWaiting::CheckDeadline(int peer, const Limits& limits,
                                     sherd_error_v0* error) const {
  if (limits.deadline == SHERD_NO_DEADLINE || Now() < limits.deadline) {
    return SHERD_OK;
  }
  if (limits.operation != 0) peer = FindLast(peer, limits.operation);
  return Fail(error, SHERD_TIMEOUT, peer, "did not come in time");
}

sherd_code ShmWaiting::AwaitLong(int peer, const Limits& limits,
                                 Condition ready, sherd_error_v0* error) const {
  int64_t now = Now();
  int64_t yield_until = now + kYieldNanoseconds;
  int64_t next_look = now + kSleepNanoseconds;
  for (;;) {
    do {
      sched_yield();
      if (ready()) return SHERD_OK;
      now = Now();
    } while (now < yield_until && now < limits.deadline);

    const uint32_t disturbances = segment_.disturbances().load();
    const bool look = now >= next_look;
    if (look) next_look = now + kSleepNanoseconds;
    sherd_code code = FindFailure(peer, limits, look, ready, error);
    if (code == SHERD_OK) code = CheckDeadline(peer, limits, error);
    if (code != SHERD_OK) return code;
    const int64_t until = std::min(limits.deadline, next_look);
    if (Sleep(peer, until, disturbances, ready)) {
      // There was progress: more is likely soon.
      yield_until = Now() + kYieldNanoseconds;
    }
  }
}

bool ShmWaiting::Sleep(int peer, int64_t until, uint32_t disturbances,
                       Condition ready) const {
  ShmRank& rank = segment_.rank(peer);
  rank.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t event = rank.event.load(std::memory_order_seq_cst);
  bool woken = true;
  if (!ready() && segment_.disturbances().load() == disturbances) {
    woken = FutexWait(rank.event, event, until);
  }
  rank.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return woken;
}

sherd_code ShmWaiting::FindFailure(int peer, const Limits& limits,
                                   bool look_for_dead, Condition ready,
                                   sherd_error_v0* error) const {
  if (own().fate.load() != 0) return ReportOwn(error);
  for (int r = 0; r < segment_.ranks(); ++r) {
    if (r == rank_) continue;
    if (r != peer && (limits.operation == 0 || HasCome(r, limits.operation))) {
      continue;  // Not needed: it has done its part, or `peer` will report.
    }
    ShmFate fate = ShmFate::Unpack(segment_.rank(r).fate.load());
    bool died = false;
    if (fate.kind == ShmFate::kNone) {
      if (!look_for_dead || !peers_[r].HasEnded()) continue;
      // It may have reported the reason before it ended.
      fate = ShmFate::Unpack(segment_.rank(r).fate.load());
      died = fate.kind == ShmFate::kNone;
    }
    // It may also have done its part before.
    if (r == peer ? ready() : HasCome(r, limits.operation)) continue;
    if (died) {
      return Fail(error, SHERD_PEER_LOST, r, "the process ended");
    }
    return ReportFate(r, fate, error);
  }
  return SHERD_OK;
}

sherd_code ShmWaiting::ReportOwn(sherd_error_v0* error) const {
  const ShmFate fate = ShmFate::Unpack(own().fate.load());
  return Fail(error, SHERD_ABORTED, -1,
              fate.kind == ShmFate::kFailed
                  ? "another operation of this rank failed"
                  : "aborted");
}

sherd_code ShmWaiting::ReportFate(int peer, const ShmFate& fate,
                                  sherd_error_v0* error) const {
  switch (fate.kind) {
    case ShmFate::kLeft:
      return Fail(error, SHERD_PEER_LOST, peer, "the rank left the group");
    case ShmFate::kAborted:
      return Fail(error, SHERD_PEER_LOST, peer, "the rank aborted the group");
    default:
      break;
  }
  // It failed because of a third rank, which is the root cause.
  const bool knows_root_cause =
      fate.peer >= 0 && fate.peer != rank_ &&
      (fate.code == SHERD_PEER_LOST || fate.code == SHERD_TIMEOUT);
  char text[120];
  if (!knows_root_cause) {
    std::snprintf(text, sizeof(text), "its operation failed with code %d",
                  fate.code);
    return Fail(error, SHERD_PEER_LOST, peer, text);
  }
  std::snprintf(text, sizeof(text),
                fate.code == SHERD_TIMEOUT
                    ? "did not come in time, as rank %d found"
                    : "was lost, as rank %d found",
                peer);
  return Fail(error, fate.code, fate.peer, text);
}

bool ShmWaiting::HasCome(int rank, uint64_t operation) const {
  return segment_.arrival(operation, rank)
             .operation.load(std::memory_order_acquire) >= operation;
}

int ShmWaiting::FindLast(int peer, uint64_t operation) const {
  const auto place = [&](int r) -> uint64_t {
    return HasCome(r, operation)
               ? 1 + segment_.rank(r).round.load(std::memory_order_acquire)
               : 0;
  };
  int last = peer;
  for (int r = 0; r < segment_.ranks(); ++r) {
    if (r != rank_ && place(r) < place(last)) last = r;
  }
  return last;
}

}  // namespace sherd::internal
