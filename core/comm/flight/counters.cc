#include "sherd/core/comm/counters.h"

namespace sherd {

OperationCount GroupCounters::Total() const {
  OperationCount total;
  for (const OperationCount& count : operations) {
    total.calls += count.calls;
    total.bytes += count.bytes;
    total.seconds += count.seconds;
    total.errors += count.errors;
  }
  return total;
}

namespace internal {

GroupCounters CounterTable::Read(const FlightClock::Scale& scale) const {
  GroupCounters counters;
  for (const Cells* const cells : {&own_, &shared_}) {
    for (size_t i = 0; i < cells->size(); ++i) {
      const Cell& cell = (*cells)[i];
      OperationCount& count = counters.operations[i];
      count.calls += cell.calls.load(std::memory_order_relaxed);
      count.bytes += cell.bytes.load(std::memory_order_relaxed);
      count.errors += cell.errors.load(std::memory_order_relaxed);
      count.seconds += 1e-9 * static_cast<double>(scale.ToNanoseconds(
                                  cell.ticks.load(std::memory_order_relaxed)));
    }
  }
  return counters;
}

}  // namespace internal
}  // namespace sherd
