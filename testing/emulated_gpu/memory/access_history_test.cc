#include "sherd/testing/emulated_gpu/memory/access_history.h"

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/testing/emulated_gpu/driver/clock.h"
#include "sherd/testing/emulated_gpu/driver/stream_queue.h"

namespace sherd::testing {
namespace {

const void* At(uint64_t address) {
  return reinterpret_cast<const void*>(address);
}

OperationRef Operation(size_t lane, uint64_t place, Clock clock = {}) {
  auto operation = std::make_shared<OrderedOperation>();
  operation->lane = lane;
  operation->place = place;
  clock.Advance(lane, place);
  operation->clock = clock;
  return operation;
}

std::set<uint64_t> BytesOf(const MemoryAccess& access) {
  std::vector<uint64_t> starts = {reinterpret_cast<uint64_t>(access.address)};
  for (const auto& [count, stride] : access.repeats) {
    std::vector<uint64_t> more;
    for (const uint64_t start : starts) {
      for (uint64_t i = 0; i < count; ++i) more.push_back(start + i * stride);
    }
    starts = more;
  }
  std::set<uint64_t> bytes;
  for (const uint64_t start : starts) {
    for (uint64_t i = 0; i < access.bytes; ++i) bytes.insert(start + i);
  }
  return bytes;
}

MemoryAccess RandomBox(std::mt19937& random) {
  MemoryAccess access = {At(1000 + random() % 40), random() % 5, false, {}};
  for (uint32_t d = random() % 3; d > 0; --d) {
    access.repeats.emplace_back(random() % 4,
                                static_cast<int64_t>(random() % 31) - 15);
  }
  return access;
}

TEST(OverlapTest, IsThatOfTheBytes) {
  std::mt19937 random(1);
  int overlaps = 0;
  for (int i = 0; i < 5000; ++i) {
    const MemoryAccess a = RandomBox(random);
    const MemoryAccess b = RandomBox(random);
    const std::set<uint64_t> in_a = BytesOf(a);
    bool expected = false;
    for (const uint64_t byte : BytesOf(b)) expected |= in_a.count(byte) > 0;
    ASSERT_EQ(Overlap(a, b), expected) << "case " << i;
    ASSERT_EQ(Overlap(b, a), expected) << "case " << i;
    overlaps += expected ? 1 : 0;
    if (!in_a.empty()) {
      EXPECT_EQ(BoundsOf(a).first, *in_a.begin());
      EXPECT_EQ(BoundsOf(a).second, *in_a.rbegin() + 1);
    }
  }
  EXPECT_GT(overlaps, 300);
}

TEST(MergeRangesTest, RowsOfABoxBecomeOneAccessWithTheSameBytes) {
  std::vector<MemoryAccess> ranges;
  std::set<uint64_t> bytes;
  for (int plane = 0; plane < 3; ++plane) {
    for (int row = 0; row < 4; ++row) {
      for (int word = 0; word < 2; ++word) {
        const uint64_t address = 5000 + plane * 1000 + row * 100 + word * 4;
        ranges.push_back(Writes(At(address), 4));
        for (uint64_t i = 0; i < 4; ++i) bytes.insert(address + i);
      }
    }
  }
  const std::vector<MemoryAccess> merged = MergeRanges(ranges);
  ASSERT_EQ(merged.size(), 1u);
  EXPECT_EQ(merged[0].bytes, 8u);
  EXPECT_TRUE(merged[0].writes);
  EXPECT_EQ(BytesOf(merged[0]), bytes);
}

TEST(MergeRangesTest, KeepsTheBytesOfAnyRanges) {
  std::mt19937 random(2);
  for (int i = 0; i < 500; ++i) {
    std::vector<MemoryAccess> ranges;
    std::set<uint64_t> bytes[2];
    for (int k = 0; k < 12; ++k) {
      const bool writes = random() % 2 == 0;
      const MemoryAccess range = {
          At(1000 + random() % 8 * 4), random() % 2 * 4, writes, {}};
      bytes[writes].merge(BytesOf(range));
      ranges.push_back(range);
    }
    std::set<uint64_t> merged[2];
    for (const MemoryAccess& box : MergeRanges(ranges)) {
      merged[box.writes].merge(BytesOf(box));
    }
    EXPECT_EQ(merged[0], bytes[0]) << "case " << i;
    EXPECT_EQ(merged[1], bytes[1]) << "case " << i;
  }
}

TEST(AccessHistoryTest, OnlyUnorderedUsesOfTheSameBytesConflict) {
  const OperationRef first = Operation(0, 1);
  AccessHistory history;
  EXPECT_EQ(history.Add(first, Writes(At(100), 10), true), nullptr);
  EXPECT_EQ(history.Add(Operation(1, 1), Reads(At(110), 10), true), nullptr);
  EXPECT_EQ(history.Add(Operation(1, 2), Reads(At(109), 1), true), first);
  Clock knows;
  knows.Advance(0, 1);
  EXPECT_EQ(history.Add(Operation(1, 3, knows), Reads(At(100), 10), true),
            nullptr);
}

TEST(AccessHistoryTest, AccessesDeclaredLateAreComparedInBothDirections) {
  const OperationRef late = Operation(0, 1);
  Clock knows;
  knows.Advance(0, 1);
  AccessHistory history;
  // Queued after `late`, and ordered behind it.
  history.Add(Operation(1, 1, knows), Writes(At(100), 10), false);
  EXPECT_EQ(history.Add(late, Writes(At(100), 10), false), nullptr);
  const OperationRef stray = Operation(2, 1);
  EXPECT_NE(history.Add(stray, Reads(At(100), 1), false), nullptr);
}

TEST(AccessHistoryTest, RepeatedUseKeepsItShort) {
  AccessHistory history;
  for (uint64_t place = 1; place <= 1000; ++place) {
    const OperationRef operation = Operation(0, place);
    history.Add(operation, Reads(At(100), 10), true);
    history.Add(operation, Writes(At(100), 10), true);
  }
  EXPECT_LE(history.size(), 2u);
}

// Against a list of all uses that is never made shorter.
TEST(AccessHistoryTest, BeingShortHidesNoConflict) {
  std::mt19937 random(3);
  int conflicts = 0;
  for (int run = 0; run < 300; ++run) {
    AccessHistory brief;
    AccessHistory full;
    std::vector<Clock> clocks(3);
    std::vector<uint64_t> places(3, 0);
    for (int i = 0; i < 30; ++i) {
      const size_t lane = random() % 3;
      if (random() % 2 == 0) clocks[lane].Join(clocks[random() % 3]);
      const OperationRef operation =
          Operation(lane, ++places[lane], clocks[lane]);
      clocks[lane] = operation->clock;
      const MemoryAccess access = {At(100 + random() % 3 * 4),
                                   4 + random() % 2 * 4,
                                   random() % 2 == 0,
                                   {}};
      const bool expected = full.Add(operation, access, false) != nullptr;
      ASSERT_EQ(brief.Add(operation, access, true) != nullptr, expected)
          << "run " << run << " step " << i;
      conflicts += expected ? 1 : 0;
      // The first conflict ends a program.
      if (expected) break;
    }
  }
  EXPECT_GT(conflicts, 100);
}

}  // namespace
}  // namespace sherd::testing
