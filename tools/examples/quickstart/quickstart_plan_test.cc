#include "sherd/tools/examples/quickstart/quickstart_plan.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/box.h"

namespace sherd {
namespace {

constexpr LayoutKind kKinds[] = {
    LayoutKind::kRows,   LayoutKind::kColumns,      LayoutKind::kGrid,
    LayoutKind::kUneven, LayoutKind::kOneRankEmpty, LayoutKind::kWhole};

// Counts how often each element of the tensor lies in a box.
std::vector<int> Coverage(const Dims& shape,
                          const std::vector<PlacedBox>& boxes) {
  const int64_t total = Volume(shape);
  std::vector<int> hits(total, 0);
  for (int64_t i = 0; i < total; ++i) {
    Dims index(shape.size());
    int64_t rest = i;
    for (size_t d = shape.size(); d-- > 0;) {
      index[d] = rest % shape[d];
      rest /= shape[d];
    }
    for (const PlacedBox& box : boxes) {
      hits[i] += Contains(box, index);
    }
  }
  return hits;
}

TEST(QuickstartPlanTest, EveryElementIsHeldOnceWhateverKindShapeAndRanks) {
  const std::vector<Dims> shapes = {
      {},     {1},     {7},       {2, 1},       {1, 9},
      {5, 8}, {13, 3}, {3, 4, 5}, {1, 1, 6, 6}, {2, 1, 3, 2, 4}};
  for (LayoutKind kind : kKinds) {
    for (const Dims& shape : shapes) {
      for (int ranks : {1, 2, 3, 4, 5, 7}) {
        for (int variation : {0, 1, 5}) {
          const auto plan = PlanLayout(kind, shape, ranks, variation);
          SCOPED_TRACE(absl::StrCat(std::string(Name(kind)), " of ",
                                    FormatDims(shape), " over ", ranks));
          EXPECT_THAT(Coverage(shape, plan.boxes), ::testing::Each(1));
          for (const PlacedBox& box : plan.boxes) {
            EXPECT_GE(box.rank, 0);
            EXPECT_LT(box.rank, ranks);
          }
        }
      }
    }
  }
}

TEST(QuickstartPlanTest, GridOverFourIsTwoByTwoAndOverThreeAMosaic) {
  const auto four = PlanLayout(LayoutKind::kGrid, {6, 8}, 4, 0);
  EXPECT_THAT(four.boxes,
              ::testing::ElementsAre(PlacedBox{{{0, 0}, {3, 4}}, 0},  //
                                     PlacedBox{{{0, 4}, {3, 4}}, 1},
                                     PlacedBox{{{3, 0}, {3, 4}}, 2},
                                     PlacedBox{{{3, 4}, {3, 4}}, 3}));
  const auto three = PlanLayout(LayoutKind::kGrid, {6, 8}, 3, 0);
  EXPECT_THAT(three.boxes,
              ::testing::ElementsAre(PlacedBox{{{0, 0}, {3, 4}}, 0},  //
                                     PlacedBox{{{0, 4}, {3, 4}}, 1},
                                     PlacedBox{{{3, 0}, {3, 8}}, 2}));
}

TEST(QuickstartPlanTest, UnevenPiecesGrow) {
  const auto plan = PlanLayout(LayoutKind::kUneven, {20, 2}, 4, 0);
  EXPECT_THAT(plan.boxes,
              ::testing::ElementsAre(PlacedBox{{{0, 0}, {2, 2}}, 0},
                                     PlacedBox{{{2, 0}, {4, 2}}, 1},
                                     PlacedBox{{{6, 0}, {6, 2}}, 2},
                                     PlacedBox{{{12, 0}, {8, 2}}, 3}));
}

TEST(QuickstartPlanTest, OneRankStaysEmptyAndItIsAnotherOneNextTime) {
  for (int variation : {0, 1, 2, 3}) {
    std::set<int> holders;
    for (const PlacedBox& box :
         PlanLayout(LayoutKind::kOneRankEmpty, {12, 5}, 4, variation).boxes) {
      holders.insert(box.rank);
    }
    EXPECT_EQ(holders.size(), 3u);
    EXPECT_FALSE(holders.contains(variation));
  }
}

TEST(QuickstartPlanTest, RowsFollowTheChunkRuleWithTrailingEmptyPieces) {
  const auto plan = PlanLayout(LayoutKind::kRows, {5, 2}, 4, 0);
  EXPECT_EQ(plan.chunk_dim, 0);
  EXPECT_THAT(plan.boxes,
              ::testing::ElementsAre(PlacedBox{{{0, 0}, {2, 2}}, 0},
                                     PlacedBox{{{2, 0}, {2, 2}}, 1},
                                     PlacedBox{{{4, 0}, {1, 2}}, 2},
                                     PlacedBox{{{5, 0}, {0, 2}}, 3}));
}

TEST(QuickstartPlanTest, EmptyTensorsAreCutByTheChunkRule) {
  for (LayoutKind kind : kKinds) {
    const auto plan = PlanLayout(kind, {0, 7}, 3, 1);
    EXPECT_TRUE(plan.chunk_dim.has_value()) << std::string(Name(kind));
    EXPECT_EQ(plan.boxes.size(), 3u);
  }
}

TEST(QuickstartPlanTest, AScalarLivesOnOneRank) {
  const auto layouts = PlanQuickstart(6, {}, 4, 3);
  EXPECT_THAT(layouts.scattered.boxes,
              ::testing::ElementsAre(PlacedBox{{{}, {}}, 2}));
  EXPECT_THAT(layouts.saved.boxes,
              ::testing::ElementsAre(PlacedBox{{{}, {}}, 3}));
  EXPECT_THAT(layouts.loaded.boxes,
              ::testing::ElementsAre(PlacedBox{{{}, {}}, 2}));
}

TEST(QuickstartPlanTest, FiveNeighboursTryEveryKindAtEveryStage) {
  std::set<LayoutKind> scattered, saved, loaded;
  for (int64_t i = 0; i < 5; ++i) {
    const auto layouts = PlanQuickstart(i, {64, 48}, 4, 3);
    scattered.insert(layouts.scattered.kind);
    saved.insert(layouts.saved.kind);
    loaded.insert(layouts.loaded.kind);
    EXPECT_NE(layouts.scattered.boxes, layouts.saved.boxes);
  }
  EXPECT_EQ(scattered.size(), 5u);
  EXPECT_EQ(saved.size(), 5u);
  EXPECT_EQ(loaded.size(), 5u);
}

}  // namespace
}  // namespace sherd
