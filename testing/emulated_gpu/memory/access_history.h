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

// An operation as the checker sees it: where it stands in the order, not when
// it runs.
struct OrderedOperation {
  // For findings: "cuMemcpyAsync of 64 bytes, 3rd on stream 2 of device 0".
  std::string name;
  size_t lane = 0;
  uint64_t place = 0;
  // What happens before it, itself included.
  Clock clock;
  // How many were queued before it, in this process.
  uint64_t index = 0;
  // Done by the host while it was called: before all that is queued later.
  bool is_host = false;
  // Where it runs, if it does on a stream.
  StreamWorker::Place runs_at;
};
using OperationRef = std::shared_ptr<const OrderedOperation>;

bool HappensBefore(const OrderedOperation& first,
                   const OrderedOperation& second);

// The lowest address of an access and the one behind its highest.
std::pair<uint64_t, uint64_t> BoundsOf(const MemoryAccess& access);

// Whether two accesses have a byte in common.
bool Overlap(const MemoryAccess& a, const MemoryAccess& b);

// Contiguous ranges as boxes: what follows each other at equal distances
// becomes one access with repeats. Keeps the order within reads and writes.
std::vector<MemoryAccess> MergeRanges(const std::vector<MemoryAccess>& ranges);

// What was done with one allocation. Two accesses conflict if they have a byte
// in common, at least one writes, and neither happens before the other. Whether
// they are found does not depend on when anything runs.
class AccessHistory {
 public:
  // Adds an access and returns an operation that it conflicts with, or null.
  // `compact` drops what can conflict with nothing any more: false while an
  // operation that was queued before may yet be added.
  OperationRef Add(const OperationRef& operation, const MemoryAccess& access,
                   bool compact);

  // An operation that does not happen before `last`, or null.
  OperationRef FindNotBefore(const OrderedOperation& last) const;

  // Drops what happens before all that will be queued.
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
