#ifndef SHERD_CORE_COMM_FLIGHT_FLIGHT_RECORDER_H_
#define SHERD_CORE_COMM_FLIGHT_FLIGHT_RECORDER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/counters.h"
#include "sherd/core/comm/flight/flight_clock.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::internal {

class FlightRecorder;

// A call between two workers that has not ended, as one of them has it: RPC's,
// of which the recorder keeps no entries.
struct FlightCall {
  // The other worker calls, and this one runs it; otherwise this one waits.
  bool incoming = false;
  // Of the other worker in its group, with its name.
  int peer = 0;
  std::string peer_name;
  // The caller's number of the call.
  uint64_t number = 0;
  std::string method;
  // Where it is: "queued", "sent", "landing"; "arriving", "waiting", "running".
  std::string state;
  // When it began here. Nanoseconds of the monotonic clock.
  int64_t started = 0;
  std::optional<int64_t> deadline;
};

// Identifies a rank of a group.
struct FlightGroupInfo {
  std::string name;
  std::string backend;
  int rank = 0;
  int size = 1;
  // Job rank of each rank; empty: rank r is r.
  std::vector<int> world_ranks;
  // The device part's device on this rank, and its backend; empty: none.
  std::string device;
  std::string device_backend;

  int world_rank() const {
    return world_ranks.empty() ? rank : world_ranks[static_cast<size_t>(rank)];
  }
};

// One rank of a group as the recorder knows it, with its counters. Lives as
// long as operations of the group may begin or end: its destructor ends
// outstanding operations as cancelled. Records stay.
class GroupTag {
 public:
  explicit GroupTag(FlightGroupInfo info);
  // For tests.
  GroupTag(FlightRecorder& recorder, FlightGroupInfo info);
  ~GroupTag();
  GroupTag(const GroupTag&) = delete;
  GroupTag& operator=(const GroupTag&) = delete;

  const FlightGroupInfo& info() const { return info_; }
  // Unique among the groups of this process; never used again.
  uint32_t id() const { return id_; }
  FlightRecorder& recorder() const { return recorder_; }
  GroupCounters counters() const;

  // Records the job rank of the failed rank. Only the first call counts.
  void SetFailedRank(int world_rank);

  // A snapshot that is taken while the tag lives calls `calls` for the calls
  // under way, on the snapshot's thread, under a lock: `calls` must neither
  // wait nor call the recorder.
  void SetCalls(std::function<std::vector<FlightCall>()> calls);

 private:
  friend class FlightRecorder;

  FlightRecorder& recorder_;
  const FlightGroupInfo info_;
  // Operations end on a group that other code sees as const.
  mutable CounterTable counters_;
  // Last: from then on snapshots look at this tag.
  const uint32_t id_;
};

// Refers to a recorded operation until End. A value type; End of a ticket that
// was never begun has no effect.
struct FlightTicket {
  uint64_t id = 0;  // 0: not recorded, only counted.
  const GroupTag* group = nullptr;
  CollectiveOp op = CollectiveOp::kBarrier;
  uint64_t bytes = 0;
  int64_t begun = 0;
};

enum class FlightState { kEnqueued, kStarted, kCompleted, kFailed };

// "enqueued", "started", "completed", "failed".
absl::string_view Name(FlightState state);

// A recorded operation. Times are nanoseconds of the monotonic clock.
struct FlightEntry {
  uint64_t id = 0;
  uint32_t group = 0;
  FlightState state = FlightState::kEnqueued;
  absl::StatusCode status = absl::StatusCode::kOk;
  CollectiveOp op = CollectiveOp::kBarrier;
  std::optional<DType> dtype;
  std::optional<ReduceOp> reduction;
  int root = -1;
  int64_t tag = 0;
  uint64_t bytes = 0;
  // Collective's `even`.
  bool is_even = false;
  bool on_device = false;
  OperationPath path = OperationPath::kNative;
  uint64_t sequence = 0;
  int64_t enqueued = 0;
  std::optional<int64_t> started;
  std::optional<int64_t> ended;
  // Unset: none.
  std::optional<int64_t> deadline;

  bool outstanding() const {
    return state == FlightState::kEnqueued || state == FlightState::kStarted;
  }
};

// A group of which there may be entries.
struct FlightGroup {
  uint32_t id = 0;
  // Counts the groups of one name and rank in this process, from 0: the same
  // on all ranks, since they create a group together.
  uint32_t instance = 0;
  FlightGroupInfo info;
  // Not destroyed yet; then `counters` are set.
  bool alive = false;
  GroupCounters counters;
  // Job rank of the failed rank, if it is known.
  std::optional<int> failed_rank;
  // Set of one that has calls.
  std::optional<std::vector<FlightCall>> calls;
};

struct FlightSnapshot {
  // When it was taken.
  int64_t monotonic_ns = 0;
  int64_t wall_ns = 0;
  std::string clock;
  size_t capacity = 0;
  // Operations that were not recorded because the ring was full of outstanding
  // ones.
  uint64_t dropped = 0;
  std::vector<FlightGroup> groups;
  // By id: in the order in which they were begun.
  std::vector<FlightEntry> entries;
};

// Remembers the last operations of this process in a ring of fixed size; an
// operation that has not ended is never overwritten.
//
// Threads. Safe from any thread. Begin, MarkStarted and End take no lock and no
// memory; a snapshot that is taken meanwhile leaves out entries that are being
// written.
//
// Cost. Begin and End together take some 40 ns, their counters included.
class FlightRecorder {
 public:
  // The process's recorder, of SHERD_FLIGHT_ENTRIES entries. Lives forever.
  static FlightRecorder& Global();

  // Rounds `capacity` up to a power of two.
  explicit FlightRecorder(size_t capacity);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Keeps only values of `call`. `started`: the call begins to run now;
  // otherwise MarkStarted records its start.
  FlightTicket Begin(const GroupTag& group, const Collective& call,
                     OperationPath path = OperationPath::kNative,
                     bool started = true);
  void MarkStarted(const FlightTicket& ticket);
  // Once per ticket, before its group's tag is destroyed.
  void End(const FlightTicket& ticket, absl::StatusCode code);

  FlightSnapshot Snapshot() const;

  // Calls `visit` with each operation that has not ended, in no order. Their
  // times are approximate.
  void VisitOutstanding(
      absl::FunctionRef<void(const FlightEntry&)> visit) const;

  // Job ranks of the ranks that have a group, ascending.
  std::vector<int> LiveWorldRanks() const;

  size_t capacity() const { return mask_ + 1; }
  const FlightClock& clock() const { return clock_; }

 private:
  friend class GroupTag;
  struct Slot;
  struct Registered {
    const GroupTag* tag;  // Null once it is destroyed.
    FlightGroupInfo info;
    uint32_t instance;
    std::optional<int> failed_rank = {};
    std::function<std::vector<FlightCall>()> calls = {};
  };

  Slot* Claim(uint64_t& id);
  bool ReadSlot(const Slot& slot, FlightEntry& entry) const;
  uint32_t Register(const GroupTag& tag, const FlightGroupInfo& info);
  void Retire(const GroupTag& tag);

  const FlightClock clock_;
  const size_t mask_;
  const std::unique_ptr<Slot[]> slots_;
  // On another cache line than the members that every Begin reads.
  alignas(64) std::atomic<uint64_t> next_{1};
  alignas(64) std::atomic<uint64_t> dropped_{0};

  mutable absl::Mutex groups_mutex_;
  uint32_t last_group_ ABSL_GUARDED_BY(groups_mutex_) = 0;
  std::map<uint32_t, Registered> groups_ ABSL_GUARDED_BY(groups_mutex_);
  // Destroyed groups, the oldest first.
  std::deque<uint32_t> retired_ ABSL_GUARDED_BY(groups_mutex_);
  // By name and job rank: groups in groups_, and the next instance.
  struct Instances {
    uint32_t next = 0;
    uint32_t known = 0;
  };
  std::map<std::pair<std::string, int>, Instances> instances_
      ABSL_GUARDED_BY(groups_mutex_);
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_FLIGHT_FLIGHT_RECORDER_H_
