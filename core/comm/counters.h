#ifndef SHERD_CORE_COMM_COUNTERS_H_
#define SHERD_CORE_COMM_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/flight/flight_clock.h"

namespace sherd {

// Totals of the ended calls of one operation.
struct OperationCount {
  uint64_t calls = 0;
  // As the call counts them: the bytes that this rank passes or receives, per
  // peer or in total; see the operation.
  uint64_t bytes = 0;
  // From the call to its end, summed: calls that overlap count twice.
  double seconds = 0;
  // Of `calls`, those that ended with an error.
  uint64_t errors = 0;
};

// The counters of one rank of a group, at a moment. Counters of different
// operations, and fields of one, may be some nanoseconds apart.
struct GroupCounters {
  std::array<OperationCount, kNumCollectiveOps> operations = {};

  const OperationCount& Of(CollectiveOp op) const {
    return operations[static_cast<size_t>(op)];
  }
  OperationCount Total() const;
};

namespace internal {

// Counts ended calls. Exact with any number of threads.
//
// Cost. One atomic exchange per call while threads do not meet.
class CounterTable {
 public:
  void Add(CollectiveOp op, uint64_t bytes, int64_t ticks, bool ok) {
    const size_t i = static_cast<size_t>(op);
    if (!taken_.exchange(true, std::memory_order_acquire)) [[likely]] {
      // This thread is the only writer: no atomic additions are needed.
      Cell& cell = own_[i];
      Raise(cell.calls, uint64_t{1});
      Raise(cell.bytes, bytes);
      Raise(cell.ticks, ticks);
      if (!ok) Raise(cell.errors, uint64_t{1});
      taken_.store(false, std::memory_order_release);
      return;
    }
    Cell& cell = shared_[i];
    cell.calls.fetch_add(1, std::memory_order_relaxed);
    cell.bytes.fetch_add(bytes, std::memory_order_relaxed);
    cell.ticks.fetch_add(ticks, std::memory_order_relaxed);
    if (!ok) cell.errors.fetch_add(1, std::memory_order_relaxed);
  }

  GroupCounters Read(const FlightClock::Scale& scale) const;

 private:
  struct Cell {
    std::atomic<uint64_t> calls{0};
    std::atomic<uint64_t> bytes{0};
    std::atomic<int64_t> ticks{0};
    std::atomic<uint64_t> errors{0};
  };
  using Cells = std::array<Cell, kNumCollectiveOps>;

  template <typename T>
  static void Raise(std::atomic<T>& cell, T amount) {
    cell.store(cell.load(std::memory_order_relaxed) + amount,
               std::memory_order_relaxed);
  }

  // Written by the thread that has taken it; other threads use the shared
  // cells, so that no thread waits for a preempted one.
  std::atomic<bool> taken_{false};
  Cells own_;
  Cells shared_;
};

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_COMM_COUNTERS_H_
