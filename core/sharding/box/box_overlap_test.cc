#include "sherd/core/sharding/box/box_overlap.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/box/box_grid.h"
#include "sherd/core/sharding/box/box_set.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/testing/random_layouts.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::RandomSeed;
using ::testing::UnorderedElementsAreArray;

using Pair = std::pair<size_t, size_t>;

bool Overlap(const BoxSet& a, size_t i, const BoxSet& b, size_t j) {
  for (int d = 0; d < a.dims(); ++d) {
    if (a.lo(i, d) >= b.hi(j, d) || b.lo(j, d) >= a.hi(i, d)) return false;
  }
  return true;
}

std::vector<Pair> BruteForce(const BoxSet& a, const BoxSet& b) {
  std::vector<Pair> pairs;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      if (Overlap(a, i, b, j)) pairs.emplace_back(i, j);
    }
  }
  return pairs;
}

std::vector<Pair> AllOverlaps(const BoxSet& a, const BoxSet& b) {
  std::vector<Pair> pairs;
  ForEachOverlap(a, b, [&](size_t i, size_t j) {
    pairs.emplace_back(i, j);
    return true;
  });
  std::sort(pairs.begin(), pairs.end());
  return pairs;
}

// Boxes anywhere, of sizes that make a few of them overlap.
BoxSet RandomBoxes(int dims, int count, int64_t extent, int64_t max_size,
                   std::mt19937_64& random) {
  BoxSet boxes(dims);
  for (int i = 0; i < count; ++i) {
    Dims offsets, sizes;
    for (int d = 0; d < dims; ++d) {
      offsets.push_back(
          std::uniform_int_distribution<int64_t>(0, extent)(random));
      sizes.push_back(
          std::uniform_int_distribution<int64_t>(0, max_size)(random));
    }
    boxes.Add({offsets, sizes}, i);
  }
  return boxes;
}

TEST(BoxSetTest, LeavesOutEmptyBoxes) {
  BoxSet boxes(2);
  boxes.Add({{0, 0}, {0, 5}}, 10);
  boxes.Add({{1, 2}, {3, 4}}, 11);
  boxes.Add({{0, 0}, {5, 0}}, 12);
  ASSERT_EQ(boxes.size(), 1u);
  EXPECT_EQ(boxes.id(0), 11);
  EXPECT_EQ(boxes.lo(0, 0), 1);
  EXPECT_EQ(boxes.lo(0, 1), 2);
  EXPECT_EQ(boxes.hi(0, 0), 4);
  EXPECT_EQ(boxes.hi(0, 1), 6);
}

TEST(BoxOverlapTest, FindsThePairsThatBruteForceFinds) {
  const uint64_t seed = RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const int dims = static_cast<int>(random() % 5);
    const int64_t extent = 1 + static_cast<int64_t>(random() % 60);
    const int64_t max_size = 1 + static_cast<int64_t>(random() % 12);
    const BoxSet a = RandomBoxes(dims, static_cast<int>(random() % 90), extent,
                                 max_size, random);
    const BoxSet b = RandomBoxes(dims, static_cast<int>(random() % 90), extent,
                                 max_size, random);
    EXPECT_EQ(AllOverlaps(a, b), BruteForce(a, b)) << "round " << round;
    EXPECT_EQ(AllOverlaps(a, a), BruteForce(a, a)) << "round " << round;
  }
}

TEST(BoxOverlapTest, FindsAnOverlapIfThereIsOne) {
  const uint64_t seed = RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int with = 0;
  int without = 0;
  for (int round = 0; round < 600; ++round) {
    const int dims = static_cast<int>(1 + random() % 4);
    const int64_t extent = 1 + static_cast<int64_t>(random() % 300);
    const BoxSet boxes =
        RandomBoxes(dims, static_cast<int>(2 + random() % 40), extent,
                    1 + static_cast<int64_t>(random() % 8), random);
    const bool expected = BruteForce(boxes, boxes).size() > boxes.size();
    const std::optional<Pair> found = FindOverlap(boxes);
    ASSERT_EQ(found.has_value(), expected) << "round " << round;
    (expected ? with : without) += 1;
    if (!found) continue;
    EXPECT_LT(found->first, found->second);
    EXPECT_TRUE(Overlap(boxes, found->first, boxes, found->second));
  }
  // Otherwise the test proves nothing.
  EXPECT_GT(with, 50);
  EXPECT_GT(without, 50);
}

// A thousand disjoint boxes that are not a grid, in two and in three
// dimensions, then one more that overlaps only the last of them.
TEST(BoxOverlapTest, FindsTheOnlyOverlapAmongManyIrregularBoxes) {
  for (const int dims : {2, 3}) {
    BoxSet boxes(dims);
    for (int64_t i = 0; i < 1000; ++i) {
      // Bricks: every second row is shifted by half a brick.
      const int64_t row = i / 20;
      Dims offsets = {row * 2, (i % 20) * 4 + (row % 2) * 2, 0};
      Dims sizes = {2, 4, i % 3 + 1};
      offsets.resize(dims);
      sizes.resize(dims);
      boxes.Add({offsets, sizes}, static_cast<int>(i));
    }
    EXPECT_FALSE(BoxGrid::Detect(boxes).has_value());
    EXPECT_EQ(FindOverlap(boxes), std::nullopt);
    Dims offsets = {98 + 1, 19 * 4 + 2 + 3, 0};
    Dims sizes = {5, 5, 1};
    offsets.resize(dims);
    sizes.resize(dims);
    boxes.Add({offsets, sizes}, 1000);
    EXPECT_EQ(FindOverlap(boxes), Pair(999, 1000));
  }
}

TEST(BoxOverlapTest, BoxesThatTouchDoNotOverlap) {
  BoxSet boxes(1);
  boxes.Add({{5}, {5}}, 0);
  boxes.Add({{0}, {5}}, 1);
  EXPECT_EQ(FindOverlap(boxes), std::nullopt);
  boxes.Add({{9}, {1}}, 2);
  EXPECT_EQ(FindOverlap(boxes), Pair(0, 2));
}

TEST(BoxOverlapTest, BoxesWithoutDimensionsAllOverlap) {
  BoxSet boxes(0);
  boxes.Add({{}, {}}, 0);
  EXPECT_EQ(FindOverlap(boxes), std::nullopt);
  boxes.Add({{}, {}}, 1);
  EXPECT_EQ(FindOverlap(boxes), Pair(0, 1));
  EXPECT_EQ(AllOverlaps(boxes, boxes).size(), 4u);
}

TEST(BoxOverlapTest, StopsWhenTheVisitorReturnsFalse) {
  std::mt19937_64 random(1);
  const BoxSet grid = [] {
    BoxSet boxes(1);
    for (int i = 0; i < 100; ++i) boxes.Add({{i}, {1}}, i);
    return boxes;
  }();
  const BoxSet irregular = RandomBoxes(3, 200, 5, 6, random);
  for (const BoxSet* boxes : {&grid, &irregular}) {
    ASSERT_GT(AllOverlaps(*boxes, *boxes).size(), 10u);
    int calls = 0;
    ForEachOverlap(*boxes, *boxes, [&](size_t, size_t) { return ++calls < 5; });
    EXPECT_EQ(calls, 5);
  }
}

TEST(BoxOverlapTest, HandlesTheLargestCoordinates) {
  constexpr int64_t kMax = INT64_MAX;
  BoxSet boxes(2);
  for (int64_t i = 0; i < 40; ++i) boxes.Add({{kMax - 40 + i, i}, {1, 3}}, 0);
  EXPECT_EQ(FindOverlap(boxes), std::nullopt);
  boxes.Add({{0, 0}, {kMax, 1}}, 0);
  EXPECT_EQ(FindOverlap(boxes), Pair(0, 40));
}

TEST(BoxGridTest, SeesGridsWithHolesAndReplicasInAnyOrder) {
  std::mt19937 random(7);
  std::vector<Dims> cells;
  for (const int64_t x : {0, 3, 4, 10}) {
    for (const int64_t y : {1, 5}) cells.push_back({x, y});
  }
  std::shuffle(cells.begin(), cells.end(), random);
  BoxSet boxes(2);
  for (const Dims& at : cells) {
    boxes.Add({at, {at[0] == 4 ? 2 : 1, 4}}, 0);
  }
  std::optional<BoxGrid> grid = BoxGrid::Detect(boxes);
  ASSERT_TRUE(grid.has_value());

  boxes.Add({cells[3], {cells[3][0] == 4 ? 2 : 1, 4}}, 1);
  grid = BoxGrid::Detect(boxes);
  ASSERT_TRUE(grid.has_value());
  std::vector<size_t> found;
  grid->ForEachIn(boxes[3], [&](size_t i) {
    found.push_back(i);
    return true;
  });
  EXPECT_THAT(found, ::testing::ElementsAre(3, 8));

  // The same begin with another end, and an interval across two others.
  for (const Dims& sizes : {Dims{1, 3}, Dims{4, 4}}) {
    BoxSet changed = boxes;
    changed.Add({{0, 1}, sizes}, 2);
    EXPECT_FALSE(BoxGrid::Detect(changed).has_value());
  }
}

TEST(BoxGridTest, LeavesGridsOfWhichMostIsMissingToOthers) {
  BoxSet boxes(2);
  for (int64_t i = 0; i < 1000; ++i) boxes.Add({{i, i}, {1, 1}}, 0);
  EXPECT_FALSE(BoxGrid::Detect(boxes).has_value());
  EXPECT_EQ(FindOverlap(boxes), std::nullopt);
  boxes.Add({{500, 500}, {1, 1}}, 0);
  EXPECT_EQ(FindOverlap(boxes), Pair(500, 1000));
  EXPECT_EQ(AllOverlaps(boxes, boxes), BruteForce(boxes, boxes));
}

TEST(BoxGridTest, GivesUpOnGridsWithMoreCellsThanNumbers) {
  BoxSet boxes(8);
  for (int64_t i = 0; i < 1000; ++i) {
    boxes.Add({Dims(8, i), Dims(8, 1)}, 0);
  }
  EXPECT_FALSE(BoxGrid::Detect(boxes).has_value());
  EXPECT_EQ(FindOverlap(boxes), std::nullopt);
  boxes.Add({Dims(8, 999), Dims(8, 1)}, 0);
  EXPECT_EQ(FindOverlap(boxes), Pair(999, 1000));
}

// Squares of 2 and of 1 in turn, none of whose edges goes through: no plane
// cuts the whole.
BoxSet PinwheelTiling(int64_t side) {
  BoxSet boxes(2);
  for (int64_t i = 0; i < side; ++i) {
    for (int64_t j = 0; j < side; ++j) {
      const int64_t x = 2 * i - j + side;
      const int64_t y = i + 2 * j;
      boxes.Add({{x, y}, {2, 2}}, 0);
      boxes.Add({{x + 2, y}, {1, 1}}, 0);
    }
  }
  return boxes;
}

TEST(BoxOverlapTest, FindsTheOnlyOverlapWhereNoPlaneCuts) {
  BoxSet boxes = PinwheelTiling(40);
  EXPECT_EQ(FindOverlap(boxes), std::nullopt);
  // Half of the last small square.
  boxes.Add({{2 * 39 - 39 + 40 + 2, 3 * 39}, {1, 1}}, 0);
  EXPECT_EQ(FindOverlap(boxes), Pair(boxes.size() - 2, boxes.size() - 1));
}

TEST(BoxOverlapTest, TakesLittleTimeWhereEachPlaneCutsOffOneBox) {
  // A spiral from the outside: top, left, bottom, right, and so on. Cutting to
  // the end would be quadratic.
  constexpr int64_t kTurns = 2'500;
  BoxSet boxes(2);
  int64_t top = 0, left = 0, bottom = 2 * kTurns + 2, right = 2 * kTurns + 2;
  for (int64_t i = 0; i < kTurns; ++i) {
    boxes.Add({{top, left}, {1, right - left}}, 0);
    ++top;
    boxes.Add({{top, left}, {bottom - top, 1}}, 0);
    ++left;
    boxes.Add({{bottom - 1, left}, {1, right - left}}, 0);
    --bottom;
    boxes.Add({{top, right - 1}, {bottom - top, 1}}, 0);
    --right;
  }
  EXPECT_EQ(FindOverlap(boxes), std::nullopt);
  boxes.Add({{top - 1, left}, {1, 1}}, 0);
  EXPECT_EQ(FindOverlap(boxes), Pair(boxes.size() - 5, boxes.size() - 1));
}

TEST(BoxOverlapTest, ComparesFewBoxesWithMany) {
  const uint64_t seed = RandomSeed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 50; ++round) {
    const int dims = static_cast<int>(random() % 4);
    const int64_t extent = 10 + static_cast<int64_t>(random() % 30);
    const BoxSet few = RandomBoxes(dims, 1 + static_cast<int>(random() % 3),
                                   extent, 6, random);
    const BoxSet many = RandomBoxes(dims, 150, extent, 6, random);
    ASSERT_EQ(AllOverlaps(few, many), BruteForce(few, many))
        << "seed " << seed << ", round " << round;
    ASSERT_EQ(AllOverlaps(many, few), BruteForce(many, few))
        << "seed " << seed << ", round " << round;
  }
}

}  // namespace
}  // namespace sherd::internal
