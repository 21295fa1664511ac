#include "sherd/tools/sherd/explain/layout_text.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// "[0, 2]+[4, 2]@1", box by box.
std::vector<std::string> Boxes(absl::string_view layout, const Dims& size) {
  const auto boxes = ParseLayout(layout, size);
  EXPECT_THAT(boxes, IsOk()) << layout;
  std::vector<std::string> texts;
  if (!boxes.ok()) return texts;
  for (const PlacedBox& box : *boxes) {
    texts.push_back(absl::StrCat(FormatDims(box.offsets), "+",
                                 FormatDims(box.sizes), "@", box.rank));
  }
  return texts;
}

TEST(LayoutTextTest, ReadsSizes) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Dims sizes, ParseDims("8192x0x3"));
  EXPECT_THAT(sizes, ElementsAre(8192, 0, 3));
  SHERD_ASSERT_OK_AND_ASSIGN(const Dims none, ParseDims("scalar"));
  EXPECT_THAT(none, IsEmpty());
}

TEST(LayoutTextTest, ReadsEveryKindOfLayout) {
  EXPECT_THAT(Boxes("chunk(-1) over 2", {2, 3}),
              ElementsAre("[0, 0]+[2, 2]@0", "[0, 2]+[2, 1]@1"));
  EXPECT_THAT(Boxes("chunk(0) over 5,3-4", {3}),
              ElementsAre("[0]+[1]@5", "[1]+[1]@3", "[2]+[1]@4"));
  EXPECT_THAT(Boxes("grid(2x1)", {4, 3}),
              ElementsAre("[0, 0]+[2, 3]@0", "[2, 0]+[2, 3]@1"));
  EXPECT_THAT(Boxes(" grid( 1x2 ) over 7,6", {4, 4}),
              ElementsAre("[0, 0]+[4, 2]@7", "[0, 2]+[4, 2]@6"));
  EXPECT_THAT(Boxes("mesh(2x2: shard(0), replicate)", {4}),
              ElementsAre("[0]+[2]@0", "[0]+[2]@1", "[2]+[2]@2", "[2]+[2]@3"));
  EXPECT_THAT(Boxes("whole over 4-5", {4}),
              ElementsAre("[0]+[4]@4", "[0]+[4]@5"));
  EXPECT_THAT(Boxes("whole over 1", {}), ElementsAre("[]+[]@0"));
}

TEST(LayoutTextTest, DealsBlocksCyclically) {
  EXPECT_THAT(Boxes("cyclic(2, 2)", {7}),
              ElementsAre("[0]+[2]@0", "[2]+[2]@1", "[4]+[2]@0", "[6]+[1]@1"));
  EXPECT_THAT(Boxes("cyclic(2x3, 2x1) over 8,9", {4, 6}),
              ElementsAre("[0, 0]+[2, 3]@8", "[0, 3]+[2, 3]@8",
                          "[2, 0]+[2, 3]@9", "[2, 3]+[2, 3]@9"));
  EXPECT_THAT(Boxes("cyclic(2x3, 1x2)", {0, 6}), IsEmpty());
}

TEST(LayoutTextTest, RefusesWhatItCannotRead) {
  struct Case {
    const char* layout;
    const char* phrase;
  };
  const Case cases[] = {
      {"", "expected chunk(DIM) over RANKS"},
      {"rows over 4", "expected chunk(DIM) over RANKS"},
      {"chunk over 4", "expected chunk(DIM) over RANKS"},
      {"chunk(0)", "expected ranks"},
      {"chunk(0 over 4", "closing parenthesis"},
      {"chunk(x) over 4", "expected a number"},
      {"chunk(2) over 4", "Invalid sharding dim"},
      {"chunk(0) over 0", "expected a number from 1"},
      {"chunk(0) over 4-2", "expected a number from 4"},
      {"chunk(0) over 1,-2", "expected a number"},
      {"chunk(0) over 0-1048575,0-1048575", "1048576 ranks at most"},
      {"chunk(0) over 99999999", "expected a number"},
      {"whole", "expected ranks"},
      {"grid(2x2) over 3", "has 4 cells, but is laid over 3 ranks"},
      {"grid(2x2x2)", "dim"},
      {"grid(0x2)", "positive"},
      {"grid(4294967296x4294967296)", "64"},
      {"grid(1048577x1)", "1048576 cells at most"},
      {"mesh(2x2)", "needs 2 mesh placements"},
      {"mesh(2x2:,)", "shard(DIM) or replicate"},
      {"mesh(2x2: shard(0), copy)", "shard(DIM) or replicate"},
      {"mesh(2x2: shard(0))", "mesh"},
      {"mesh(2x2: shard(5), replicate)", "Invalid sharding dim"},
      {"cyclic(2x2)", "a grid of 2 dimensions"},
      {"cyclic(0x2, 2x2)", "positive"},
      {"cyclic(2x2, 0x2)", "positive"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ParseLayout(c.layout, {8, 8}),
                StatusIs(absl::StatusCode::kInvalidArgument, c.phrase))
        << c.layout;
  }
  EXPECT_THAT(ParseLayout("cyclic(1x1, 1x1)", {1 << 12, 1 << 12}),
              StatusIs(absl::StatusCode::kInvalidArgument, "blocks at most"));
  for (const char* size : {"8,8", "8x", "x", "-1", "4294967296x4294967296"}) {
    EXPECT_THAT(ParseDims(size),
                StatusIs(absl::StatusCode::kInvalidArgument, ""))
        << size;
  }
}

}  // namespace
}  // namespace sherd
