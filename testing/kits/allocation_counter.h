#ifndef SHERD_TESTING_KITS_ALLOCATION_COUNTER_H_
#define SHERD_TESTING_KITS_ALLOCATION_COUNTER_H_

#include <cstdint>

// What a thread allocates by operator new. A program that calls one of these
// functions contains operators new and delete that count, in place of those of
// the standard library: hence a library of its own. Forms with alignment, and
// malloc, are not counted.

namespace sherd::testing {

// How often the calling thread has called operator new.
int64_t AllocationsOfThisThread();

// While it exists, allocations of its thread do not count: those of a double
// that the code under test calls.
class UncountedAllocations {
 public:
  UncountedAllocations();
  ~UncountedAllocations();
  UncountedAllocations(const UncountedAllocations&) = delete;
  UncountedAllocations& operator=(const UncountedAllocations&) = delete;

 private:
  const int64_t before_;
};

// Measures how many bytes its thread holds at most while it exists, beyond what
// it held before, with malloc's overhead. At most one per thread at a time.
class PeakMemory {
 public:
  PeakMemory();
  ~PeakMemory();
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  int64_t bytes() const { return peak_; }

  // Called by the operators: of memory that the thread takes, or gives back.
  void Add(int64_t bytes);

 private:
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_ALLOCATION_COUNTER_H_
