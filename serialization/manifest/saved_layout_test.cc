#include "sherd/serialization/manifest/saved_layout.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::StatusIs;
using ::testing::ElementsAre;

std::vector<Box> BoxesOf(const SavedLayout& layout) {
  std::vector<Box> boxes;
  for (int64_t i = 0; i < layout.size(); ++i) boxes.push_back(layout.BoxAt(i));
  return boxes;
}

std::vector<int64_t> In(const SavedLayout& layout, const Box& box) {
  std::vector<int64_t> found;
  EXPECT_TRUE(layout.ForEachIn(box, [&](int64_t i) {
    found.push_back(i);
    return true;
  }));
  return found;
}

TEST(SavedLayoutTest, ChunksAreAGridOfOneStep) {
  // The last two are empty; wherever they begin, nothing is lost.
  const std::vector<Box> boxes = {{{0, 0}, {2, 3}},
                                  {{2, 0}, {2, 3}},
                                  {{4, 0}, {1, 3}},
                                  {{6, 0}, {0, 3}},
                                  {{8, 0}, {0, 3}}};
  const SavedLayout layout = SavedLayout::FromBoxes({5, 3}, boxes);
  ASSERT_TRUE(layout.is_grid());
  EXPECT_THAT(layout.axes(),
              ElementsAre(SavedLayout::Axis{5, 2, {}}, SavedLayout::Axis{}));
  EXPECT_THAT(layout.Validate(), IsOk());
  EXPECT_EQ(layout.BoxAt(2), boxes[2]);
  EXPECT_EQ(layout.VolumeAt(3), 0);
  EXPECT_THAT(In(layout, {{3, 1}, {2, 1}}), ElementsAre(1, 2));
}

TEST(SavedLayoutTest, GridsAreFoundInAnyOrder) {
  const SavedLayout grid = SavedLayout::Grid(
      {7, 6}, {{.cells = 3, .cuts = {0, 1, 5, 7}}, {.cells = 3, .step = 2}});
  std::vector<Box> boxes = BoxesOf(grid);
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(boxes.begin(), boxes.end(), random);
    std::vector<int64_t> order;
    const SavedLayout layout = SavedLayout::FromBoxes({7, 6}, boxes, &order);
    EXPECT_EQ(layout, grid);
    for (int64_t i = 0; i < layout.size(); ++i) {
      EXPECT_EQ(layout.BoxAt(i), boxes[order[i]]);
    }
  }
}

TEST(SavedLayoutTest, OtherBoxesKeepTheirOrder) {
  const std::vector<Box> boxes = {{{0, 2}, {2, 1}},
                                  {{0, 0}, {1, 2}},
                                  {{2, 1}, {1, 2}},
                                  {{1, 0}, {2, 1}},
                                  {{1, 1}, {1, 1}}};
  const SavedLayout layout = SavedLayout::FromBoxes({3, 3}, boxes);
  EXPECT_FALSE(layout.is_grid());
  EXPECT_EQ(BoxesOf(layout), boxes);
  EXPECT_THAT(layout.Validate(), IsOk());
  EXPECT_THAT(In(layout, {{0, 0}, {2, 2}}), ElementsAre(1, 3, 4));
}

TEST(SavedLayoutTest, SmallAndEmptyTensors) {
  EXPECT_EQ(SavedLayout::FromBoxes({}, {{{}, {}}}), SavedLayout::Whole({}));
  EXPECT_THAT(In(SavedLayout::Whole({}), {}), ElementsAre(0));
  const std::vector<Box> empty = {{{0, 0}, {0, 4}}, {{0, 0}, {0, 4}}};
  const SavedLayout layout = SavedLayout::FromBoxes({0, 4}, empty);
  EXPECT_EQ(layout.size(), 2);
  EXPECT_THAT(layout.Validate(), IsOk());
  EXPECT_TRUE(In(layout, {{0, 0}, {0, 4}}).empty());
}

// Random guillotine cuts, which are grids now and then.
TEST(SavedLayoutTest, FindsTheBoxesThatASearchOfAllFinds) {
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    const size_t dims = 1 + random() % 3;
    Dims sizes;
    for (size_t d = 0; d < dims; ++d) sizes.push_back(1 + random() % 12);
    std::vector<Box> boxes = {WholeBox(sizes)};
    for (int cut = 0; cut < 20; ++cut) {
      const size_t i = random() % boxes.size();
      const size_t d = random() % dims;
      if (boxes[i].sizes[d] < 2) continue;
      Box other = boxes[i];
      const int64_t half = 1 + random() % (other.sizes[d] - 1);
      boxes[i].sizes[d] = half;
      other.offsets[d] += half;
      other.sizes[d] -= half;
      boxes.push_back(other);
    }
    std::vector<int64_t> order;
    const SavedLayout layout = SavedLayout::FromBoxes(sizes, boxes, &order);
    EXPECT_THAT(layout.Validate(), IsOk());
    ASSERT_EQ(order.size(), boxes.size());
    for (int64_t i = 0; i < layout.size(); ++i) {
      EXPECT_EQ(layout.BoxAt(i), boxes[order[i]]);
      EXPECT_EQ(layout.VolumeAt(i), Volume(boxes[order[i]]));
    }
    for (int query = 0; query < 10; ++query) {
      Box wanted = WholeBox(sizes);
      for (size_t d = 0; d < dims; ++d) {
        wanted.offsets[d] = random() % sizes[d];
        wanted.sizes[d] = 1 + random() % (sizes[d] - wanted.offsets[d]);
      }
      std::vector<int64_t> expected;
      for (int64_t i = 0; i < layout.size(); ++i) {
        if (CommonVolume(layout.BoxAt(i), wanted) > 0) expected.push_back(i);
      }
      EXPECT_EQ(In(layout, wanted), expected);
      int visited = 0;
      EXPECT_EQ(
          layout.ForEachIn(wanted, [&](int64_t) { return ++visited < 1; }),
          expected.empty());
      EXPECT_EQ(visited, expected.empty() ? 0 : 1);
    }
  }
}

TEST(SavedLayoutTest, NumbersFromOutsideAreChecked) {
  const auto refused = StatusIs(absl::StatusCode::kDataLoss);
  using Axis = SavedLayout::Axis;
  for (const Axis& axis :
       {Axis{0, 1, {}}, Axis{2, 1, {}}, Axis{-1, 5, {}}, Axis{2, -3, {}},
        Axis{2, 0, {}}, Axis{2, 0, {0, 3}}, Axis{2, 0, {0, 3, 4}},
        Axis{2, 0, {1, 3, 5}}, Axis{3, 0, {0, 4, 3, 5}},
        Axis{int64_t{1} << 40, int64_t{1} << 40, {}},
        Axis{int64_t{1} << 40, 1, {}}}) {
    EXPECT_THAT(SavedLayout::Grid({5}, {axis}).Validate(), refused);
  }
  EXPECT_THAT(SavedLayout::Grid({5}, {{2, 3, {}}}).Validate(), IsOk());
  EXPECT_THAT(SavedLayout::Boxes({5}, {{{0}, {2}}}).Validate(), refused);
  EXPECT_THAT(SavedLayout::Boxes({5}, {{{0}, {6}}}).Validate(), refused);
  EXPECT_THAT(SavedLayout::Boxes({5}, {{{-1}, {6}}}).Validate(), refused);
}

TEST(SavedLayoutTest, TheEndOfTheLastCellIsANumber) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const int64_t step : {kMax, kMax / 2 + 1}) {
    EXPECT_THAT(SavedLayout::Grid({5}, {{.cells = 2, .step = step}}).Validate(),
                StatusIs(absl::StatusCode::kDataLoss, "do not fill it"));
    EXPECT_THAT(SavedLayout::Grid({5}, {{.cells = 1, .step = step}}).Validate(),
                IsOk());
  }
  const SavedLayout layout =
      SavedLayout::FromBoxes({kMax}, {{{0}, {kMax - 1}}, {{kMax - 1}, {1}}});
  EXPECT_THAT(layout.Validate(), IsOk());
  EXPECT_EQ(layout.BoxAt(1), (Box{{kMax - 1}, {1}}));
}

}  // namespace
}  // namespace sherd
