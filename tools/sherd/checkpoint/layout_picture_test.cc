#include "sherd/tools/sherd/checkpoint/layout_picture.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/svg.h"

namespace sherd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

HeldTensor Rows() {
  return {
      "w", kFloat32, {4, 6}, {{{{0, 0}, {2, 6}}, 0}, {{{2, 0}, {2, 6}}, 1}}};
}

HeldTensor Columns() {
  return {
      "w", kFloat32, {4, 6}, {{{{0, 0}, {4, 3}}, 0}, {{{0, 3}, {4, 3}}, 1}}};
}

TEST(MovedBytesTest, RowsToColumnsMovesTheOffDiagonalBlocks) {
  EXPECT_THAT(MovedBytes(Rows(), Columns(), 2, 2),
              ElementsAre(ElementsAre(24, 24), ElementsAre(24, 24)));
  EXPECT_THAT(MovedBytes(Rows(), Rows(), 2, 2),
              ElementsAre(ElementsAre(48, 0), ElementsAre(0, 48)));
}

TEST(MovedBytesTest, AScalarMovesWhole) {
  const HeldTensor from = {"s", kInt64, {}, {{{{}, {}}, 1}}};
  const HeldTensor to = {"s", kInt64, {}, {{{{}, {}}, 0}}};
  EXPECT_THAT(MovedBytes(from, to, 2, 3),
              ElementsAre(ElementsAre(0, 0, 0), ElementsAre(8, 0, 0)));
}

TEST(DrawTransitionsTest, ShowsEveryBoxInEveryStageAndWhatMoves) {
  const LayoutPicture picture = {
      "title & <more>",
      "subtitle",
      {{"before", 2, {Rows()}}, {"after", 2, {Columns()}}},
      {{0, "rows → columns"}}};
  const std::string svg = DrawTransitions(picture);
  EXPECT_THAT(svg, HasSubstr("title &amp; &lt;more&gt;"));
  EXPECT_THAT(svg, HasSubstr("rank 1: offsets [0, 3], sizes [4, 3], 48 B"));
  EXPECT_THAT(svg, HasSubstr("rank 1: offsets [2, 0], sizes [2, 6], 48 B"));
  EXPECT_THAT(svg, HasSubstr(">48 B</text>"));  // On the arrow.
  EXPECT_THAT(svg, HasSubstr("rank 0 to rank 1: 24 bytes"));
  EXPECT_EQ(Count(svg, "<svg"), 1);
  EXPECT_EQ(Count(svg, "</svg>\n"), 1);
  EXPECT_EQ(Count(svg, "<text"), Count(svg, "</text>"));
}

TEST(DrawTransitionsTest, NamesTheRankThatHoldsNothingAndWhatASliceHides) {
  const HeldTensor cube = {"c",
                           kUInt8,
                           {2, 2, 2},
                           {{{{0, 0, 0}, {1, 1, 1}}, 0},
                            {{{0, 0, 1}, {1, 1, 1}}, 1},
                            {{{0, 1, 0}, {1, 1, 2}}, 0},
                            {{{1, 0, 0}, {1, 2, 2}}, 3}}};
  const LayoutPicture picture = {"t", "", {{"only", 4, {cube}}}, {{0, "cube"}}};
  const std::string svg = DrawTransitions(picture);
  EXPECT_THAT(svg,
              HasSubstr("rank 2 holds nothing; slice at 0 of dimension 2"));
  EXPECT_THAT(svg, Not(HasSubstr("offsets [0, 0, 1]")));
}

TEST(DrawStageTest, GroupsTensorsOfOneKind) {
  HeldTensor twin = Rows();
  twin.name = "twin";
  const HeldTensor empty = {"nil", kFloat32, {0, 3}, {{{{0, 0}, {0, 3}}, 0}}};
  const std::string svg =
      DrawStage("t", "s", {"", 2, {Rows(), twin, Columns(), empty}});
  EXPECT_THAT(svg, HasSubstr(">w</text>"));
  EXPECT_THAT(svg, HasSubstr(">×2</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("twin")));
  EXPECT_THAT(svg, HasSubstr("no elements"));
  EXPECT_THAT(svg, HasSubstr(">144 B</text>"));  // Of each rank in all.
}

TEST(SvgTest, ColoursOfRanksDiffer) {
  for (int a = 0; a < 40; ++a) {
    for (int b = 0; b < a; ++b) EXPECT_NE(RankColour(a), RankColour(b));
  }
}

TEST(SvgTest, ControlCharactersOfNamesDoNotBreakTheFile) {
  Svg svg;
  svg.Text(0, 0, absl::string_view("a\0b\x1b\"", 5));
  EXPECT_THAT(svg.ToString(10, 10, ""),
              HasSubstr(R"(>a\x00b\x1b&quot;</text>)"));
}

}  // namespace
}  // namespace sherd
