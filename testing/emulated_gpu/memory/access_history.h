#ifndef SHERD_TESTING_EMULATED_GPU_MEMORY_ACCESS_HISTORY_H_
#define SHERD_TESTING_EMULATED_GPU_MEMORY_ACCESS_HISTORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sherd/testing/emulated_gpu/driver/clock.h"
#include "sherd/testing/emulated_gpu/driver/stream_queue.h"
#include "sherd/testing/emulated_gpu/driver/stream_worker.h"

namespace sherd::testing {

// An operation as the checker sees it: its place in the order, not the time at
// which it runs.
struct OrderedOperation {
  // For findings: "cuMemcpyAsync of 64 bytes, 3rd on stream 2 of device 0".
  std::string name;
  size_t lane = 0;
  uint64_t place = 0;
  // All operations that happen before it, including itself.
  Clock clock;
  // The number of operations queued before it, in this process.
  uint64_t index = 0;
  // Done by the host during the call: before all work that is queued later.
  bool is_host = false;
  // Where it runs, if it is on a stream.
  StreamWorker::Place runs_at;
};
using OperationRef = std::shared_ptr<const OrderedOperation>;

bool HappensBefore(const OrderedOperation& first,
                   const OrderedOperation& second);

// The lowest address of an access, and one past its highest.
std::pair<uint64_t, uint64_t> BoundsOf(const MemoryAccess& access);

// Whether two accesses have a byte in common.
bool Overlap(const MemoryAccess& a, const MemoryAccess& b);

// Contiguous ranges as boxes: accesses at equal distances become one access
// with repeats. Keeps the order within reads and writes.
std::vector<MemoryAccess> MergeRanges(const std::vector<MemoryAccess>& ranges);

// The accesses to one allocation. Two accesses conflict if they have a byte in
// common, at least one writes, and neither happens before the other. Whether a
// conflict is found does not depend on timing.
class AccessHistory {
 public:
  // Adds an access and returns an operation that it conflicts with, or null.
  // `compact` drops accesses that can no longer conflict; it is false while an
  // operation that was queued before may still be added.
  OperationRef Add(const OperationRef& operation, const MemoryAccess& access,
                   bool compact);

  // An operation that does not happen before `last`, or null.
  OperationRef FindNotBefore(const OrderedOperation& last) const;

  // Drops accesses that happen before all work that will be queued.
  void Forget(const Clock& known);

  size_t size() const { return records_.size(); }

 private:
  struct Record {
    OperationRef operation;
    MemoryAccess access;
    uint64_t low;
    uint64_t high;
  };

  std::vector<Record> records_;
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_MEMORY_ACCESS_HISTORY_H_
