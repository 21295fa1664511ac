#include "sherd/backends/shm/free_ranges.h"

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd::internal {
namespace {

using ::testing::Optional;

TEST(FreeRangesTest, TakesTheSmallestThatFitsAndOfSeveralTheFirst) {
  FreeRanges ranges;
  ranges.Add({1000, 300});
  ranges.Add({5000, 100});
  ranges.Add({3000, 100});
  ranges.Add({9000, 90});
  EXPECT_THAT(ranges.FindFit(95), Optional(100u));
  EXPECT_THAT(ranges.Take(95), Optional(SlabRange{3000, 95}));
  EXPECT_THAT(ranges.Take(95), Optional(SlabRange{5000, 95}));
  EXPECT_THAT(ranges.Take(95), Optional(SlabRange{1000, 95}));
  EXPECT_THAT(ranges.Take(300), std::nullopt);
  EXPECT_EQ(ranges.total_bytes(), 5u + 5u + 205u + 90u);
}

TEST(FreeRangesTest, NeighboursJoinOnBothSides) {
  FreeRanges ranges;
  ranges.Add({0, 10});
  ranges.Add({20, 10});
  EXPECT_EQ(ranges.count(), 2u);
  EXPECT_EQ(ranges.Add({10, 10}), (SlabRange{0, 30}));
  EXPECT_EQ(ranges.count(), 1u);
  EXPECT_THAT(ranges.Take(30), Optional(SlabRange{0, 30}));
  EXPECT_EQ(ranges.count(), 0u);
}

TEST(FreeRangesTest, RangesOfDifferentArenasDoNotJoin) {
  const std::set<uint64_t> walls = {100, 300};
  FreeRanges ranges(&walls);
  ranges.Add({50, 50});
  EXPECT_EQ(ranges.Add({100, 40}), (SlabRange{100, 40}));
  EXPECT_EQ(ranges.Add({0, 50}), (SlabRange{0, 100}));
  EXPECT_EQ(ranges.Add({140, 60}), (SlabRange{100, 100}));
  EXPECT_EQ(ranges.TakeAt(100), (SlabRange{100, 100}));
  ranges.Add({300, 10});
  EXPECT_EQ(ranges.Add({250, 50}), (SlabRange{250, 50}));
  EXPECT_EQ(ranges.total_bytes(), 160u);
}

TEST(FreeRangesTest, TheOldestIsKnownAndJoiningMakesYounger) {
  FreeRanges ranges;
  EXPECT_FALSE(ranges.FindOldest().has_value());
  ranges.Add({0, 10}, 1);
  ranges.Add({100, 10}, 2);
  ranges.Add({200, 10});
  EXPECT_EQ(ranges.FindOldest()->begin, 0u);
  ranges.Add({10, 10}, 3);
  EXPECT_EQ(ranges.FindOldest()->begin, 100u);
  EXPECT_EQ(ranges.FindOldest()->age, 2u);
  ranges.TakeAt(100);
  EXPECT_EQ(ranges.FindOldest()->age, 3u);
  // The rest of a range keeps its age.
  EXPECT_THAT(ranges.Take(15), Optional(SlabRange{0, 15}));
  EXPECT_EQ(ranges.FindOldest()->begin, 15u);
}

// The free bytes, one by one.
class Model {
 public:
  explicit Model(size_t size) : free_(size, true) {}

  void Set(const SlabRange& range, bool free) {
    for (uint64_t i = range.begin; i < range.end(); ++i) {
      EXPECT_NE(free_[i], free) << "byte " << i;
      free_[i] = free;
    }
  }

  // The first of the shortest runs that are long enough.
  std::optional<uint64_t> Fit(uint64_t bytes) const {
    std::optional<SlabRange> best;
    for (const SlabRange& run : Runs()) {
      if (run.size >= bytes && (!best || run.size < best->size)) best = run;
    }
    if (!best) return std::nullopt;
    return best->begin;
  }

  std::vector<SlabRange> Runs() const {
    std::vector<SlabRange> runs;
    for (uint64_t i = 0; i < free_.size(); ++i) {
      if (!free_[i]) continue;
      if (i == 0 || !free_[i - 1]) runs.push_back({i, 0});
      ++runs.back().size;
    }
    return runs;
  }

 private:
  std::vector<bool> free_;
};

TEST(FreeRangesTest, AgreesWithAModelOnRandomBlocks) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr uint64_t kSize = 2000;
  FreeRanges ranges;
  ranges.Add({0, kSize});
  Model model(kSize);
  std::vector<SlabRange> taken;
  for (int step = 0; step < 3000 && !HasFailure(); ++step) {
    if (taken.empty() || random() % 5 < 3) {
      const uint64_t bytes = 1 + random() % (random() % 8 == 0 ? 300 : 40);
      const std::optional<SlabRange> block = ranges.Take(bytes);
      const std::optional<uint64_t> expected = model.Fit(bytes);
      ASSERT_EQ(block.has_value(), expected.has_value()) << bytes;
      if (!block) continue;
      ASSERT_EQ(*block, (SlabRange{*expected, bytes}));
      model.Set(*block, false);
      taken.push_back(*block);
    } else {
      std::swap(taken[random() % taken.size()], taken.back());
      ranges.Add(taken.back(), random() % 3);
      model.Set(taken.back(), true);
      taken.pop_back();
    }
    const std::vector<SlabRange> runs = model.Runs();
    ASSERT_EQ(ranges.count(), runs.size());
    uint64_t total = 0;
    for (const SlabRange& run : runs) total += run.size;
    ASSERT_EQ(ranges.total_bytes(), total);
  }
}

}  // namespace
}  // namespace sherd::internal
