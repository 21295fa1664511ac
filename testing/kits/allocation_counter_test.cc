#include "sherd/testing/kits/allocation_counter.h"

#include <cstdint>
#include <latch>
#include <new>
#include <thread>

#include "gtest/gtest.h"

// Clang does not declare this form, unless told to use it.
void operator delete(void* memory, size_t bytes) noexcept;

namespace sherd::testing {
namespace {

// Calls of the operators, unlike new-expressions, are never left out.
void AllocateAndFree(size_t bytes) { ::operator delete(::operator new(bytes)); }

TEST(AllocationCounterTest, EveryFormWithoutAlignmentCounts) {
  const int64_t before = AllocationsOfThisThread();
  AllocateAndFree(0);
  ::operator delete(::operator new(3, std::nothrow), std::nothrow);
  ::operator delete[](::operator new[](5));
  ::operator delete[](::operator new[](5, std::nothrow), std::nothrow);
  EXPECT_EQ(AllocationsOfThisThread(), before + 4);
}

TEST(AllocationCounterTest, AThreadCountsItsOwn) {
  std::latch start(1);
  int64_t counted = 0;
  std::thread other([&] {
    start.wait();
    const int64_t before = AllocationsOfThisThread();
    for (int i = 0; i < 1000; ++i) AllocateAndFree(8);
    counted = AllocationsOfThisThread() - before;
  });
  const int64_t before = AllocationsOfThisThread();
  start.count_down();
  other.join();
  EXPECT_EQ(AllocationsOfThisThread(), before);
  EXPECT_EQ(counted, 1000);
}

TEST(AllocationCounterTest, UncountedAllocationsDoNotCount) {
  const int64_t before = AllocationsOfThisThread();
  {
    const UncountedAllocations uncounted;
    AllocateAndFree(8);
  }
  EXPECT_EQ(AllocationsOfThisThread(), before);
  AllocateAndFree(8);
  EXPECT_EQ(AllocationsOfThisThread(), before + 1);
}

TEST(PeakMemoryTest, IsTheMostThatWasHeldAtOnce) {
  void* const earlier = ::operator new(1 << 20);
  const PeakMemory peak;
  EXPECT_EQ(peak.bytes(), 0);
  void* const first = ::operator new(1000);
  ::operator delete(first);
  void* const second = ::operator new(3000);
  void* const third = ::operator new(4000);
  ::operator delete(second);
  ::operator delete (third, size_t{4000});
  AllocateAndFree(7000);
  EXPECT_GE(peak.bytes(), 7000);
  EXPECT_LT(peak.bytes(), 7500);
  for (int i = 0; i < 1000; ++i) ::operator delete(nullptr);
  AllocateAndFree(14000);
  EXPECT_GE(peak.bytes(), 14000);
  // Memory from before that was given back makes room.
  ::operator delete(earlier);
  AllocateAndFree(1 << 19);
  EXPECT_LT(peak.bytes(), 14500);
}

TEST(PeakMemoryTest, EndsWithTheObject) {
  { const PeakMemory peak; }
  AllocateAndFree(100000);
  const PeakMemory peak;
  EXPECT_EQ(peak.bytes(), 0);
}

}  // namespace
}  // namespace sherd::testing
