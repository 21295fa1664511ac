#include "sherd/tools/sherd/explain/plan_picture.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/sharding/plan/plan_report.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Boxes = std::vector<PlacedBox>;

// Rows on three ranks to columns on four, the last of which had nothing; rank 0
// keeps a box. PlanReportTest has the same as text.
TEST(PlanPictureTest, IsThatOfTheFile) {
  const Boxes from = {{{{0, 0}, {4, 12}}, 0},
                      {{{4, 0}, {4, 12}}, 1},
                      {{{8, 0}, {4, 12}}, 2},
                      {{{12, 0}, {1, 12}}, 0}};
  const Boxes to = {{{{0, 0}, {12, 3}}, 0},
                    {{{0, 3}, {12, 3}}, 1},
                    {{{0, 6}, {12, 3}}, 2},
                    {{{0, 9}, {12, 3}}, 3},
                    {{{12, 0}, {1, 12}}, 0}};
  SHERD_ASSERT_OK_AND_ASSIGN(const PlanReport report,
                             ExplainPlan(from, to,
                                         {.element_size = 4,
                                          .max_staging_bytes = 384,
                                          .host_of_rank = {0, 0, 1, 1}}));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const std::string expected,
      ReadFile(FileSystem::Posix(), "tools/sherd/testdata/plan_report.svg",
               1 << 20));
  EXPECT_TRUE(PlanToSvg(report) == expected) << PlanToSvg(report);
}

TEST(PlanPictureTest, ShowsThatNothingMoves) {
  for (const Boxes& boxes : {Boxes{}, Boxes{{{{0}, {0}}, 3}},
                             Boxes{{{{0}, {8}}, 0}, {{{8}, {8}}, 1}}}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const PlanReport report,
                               ExplainPlan(boxes, boxes, {.world_size = 5}));
    EXPECT_THAT(PlanToSvg(report), HasSubstr("on 5 ranks"));
  }
}

TEST(PlanPictureTest, ManyRanksShareALabel) {
  constexpr int kRanks = 150;
  Boxes rows;
  Boxes columns;
  for (int rank = 0; rank < kRanks; ++rank) {
    rows.push_back({{{rank, 0}, {1, kRanks}}, rank});
    columns.push_back({{{0, rank}, {kRanks, 1}}, rank});
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const PlanReport report,
                             ExplainPlan(rows, columns, {.element_size = 1}));
  EXPECT_THAT(PlanToSvg(report),
              AllOf(HasSubstr(">from ranks<"), HasSubstr("ranks 2-3 to "),
                    Not(HasSubstr("http://www.w3.org/1999/xlink"))));
}

}  // namespace
}  // namespace sherd
