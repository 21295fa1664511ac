#include "sherd/tools/bench/peers/box_layout.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

WordTensor Matrix(int64_t rows, int64_t cols) { return {{1, rows, cols}, 2}; }
WordBox Box(int64_t row, int64_t col, int64_t rows, int64_t cols) {
  return {{0, row, col}, {1, rows, cols}};
}

TEST(MatrixOfBytesTest, IsAboutSquare) {
  const auto small = MatrixOfBytes(4096);
  ASSERT_THAT(small, IsOk());
  EXPECT_EQ(small->rows(), 512);
  EXPECT_EQ(small->cols(), 2);
  const auto large = MatrixOfBytes(int64_t{512} << 20);
  ASSERT_THAT(large, IsOk());
  EXPECT_EQ(large->rows(), 16384);
  EXPECT_EQ(large->cols(), 8192);
}

TEST(MatrixOfBytesTest, RefusesWhatTheRowsDoNotDivide) {
  EXPECT_THAT(MatrixOfBytes(1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(MatrixOfBytes(4096 + 4),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("multiple of 2048")));
}

TEST(CubeOfBytesTest, IsAboutACube) {
  EXPECT_THAT(CubeOfBytes(1 << 20)->size, ElementsAre(64, 64, 64));
  EXPECT_THAT(CubeOfBytes(int64_t{1} << 30)->size, ElementsAre(1024, 512, 512));
  EXPECT_THAT(CubeOfBytes(4096)->size, ElementsAre(16, 8, 8));
  EXPECT_EQ(CubeOfBytes(4096)->dims, 3);
}

TEST(CubeOfBytesTest, RefusesWhatTheFirstTwoDimsDoNotDivide) {
  EXPECT_THAT(CubeOfBytes(3), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CubeOfBytes(4096 + 4),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("cube of 16 x 16")));
}

TEST(BoxLayoutTest, LastRanksMayHaveLessOrNothing) {
  const WordTensor matrix = Matrix(5, 3);
  EXPECT_THAT(
      BoxesOf(matrix, RowsOver(matrix, 4)),
      ElementsAre(ElementsAre(Box(0, 0, 2, 3)), ElementsAre(Box(2, 0, 2, 3)),
                  ElementsAre(Box(4, 0, 1, 3)), IsEmpty()));
  EXPECT_THAT(
      BoxesOf(matrix, ColumnsOver(matrix, 2)),
      ElementsAre(ElementsAre(Box(0, 0, 5, 2)), ElementsAre(Box(0, 2, 5, 1))));
}

TEST(BoxLayoutTest, TheGridHasTwoRowsAndIsColumnsForTwoRanks) {
  const WordTensor matrix = Matrix(6, 4);
  EXPECT_THAT(
      BoxesOf(matrix, GridOver(matrix, 4)),
      ElementsAre(ElementsAre(Box(0, 0, 3, 2)), ElementsAre(Box(0, 2, 3, 2)),
                  ElementsAre(Box(3, 0, 3, 2)), ElementsAre(Box(3, 2, 3, 2))));
  EXPECT_EQ(BoxesOf(matrix, GridOver(matrix, 2)),
            BoxesOf(matrix, ColumnsOver(matrix, 2)));
}

TEST(BoxLayoutTest, BlocksAreDealtOutInTurn) {
  EXPECT_THAT(BoxesOf(Matrix(5, 4), BlocksOver(2, /*grid_rows=*/2, 2)),
              ElementsAre(ElementsAre(Box(0, 0, 2, 2), Box(0, 2, 2, 2),
                                      Box(4, 0, 1, 2), Box(4, 2, 1, 2)),
                          ElementsAre(Box(2, 0, 2, 2), Box(2, 2, 2, 2))));
}

TEST(BoxLayoutTest, ThreeDimsAreCutAlongAny) {
  EXPECT_THAT(CutAlong({{4, 3, 5}, 3}, 2, 2),
              ElementsAre(ElementsAre(WordBox{{0, 0, 0}, {4, 3, 3}}),
                          ElementsAre(WordBox{{0, 0, 3}, {4, 3, 2}})));
  EXPECT_THAT(
      CutAlong({{1, 3, 5}, 3}, 0, 2),
      ElementsAre(ElementsAre(WordBox{{0, 0, 0}, {1, 3, 5}}), IsEmpty()));
}

struct NamedLayout {
  std::string name;
  BoxLayout boxes;
};

// Of a tensor over four ranks.
std::vector<NamedLayout> LayoutsOf(const WordTensor& tensor) {
  std::vector<NamedLayout> layouts;
  for (const int dim : {0, 1, 2}) {
    layouts.push_back({absl::StrCat("dim ", dim), CutAlong(tensor, dim, 4)});
  }
  if (tensor.dims == 3) return layouts;
  for (const auto layout_of :
       {RowsOver, ColumnsOver, GridOver, AllOnRankZero}) {
    layouts.push_back({absl::StrCat("matrix layout ", layouts.size()),
                       BoxesOf(tensor, layout_of(tensor, 4))});
  }
  for (const int block : {1, 2, 3}) {
    layouts.push_back({absl::StrCat("blocks of ", block),
                       BoxesOf(tensor, BlocksOver(block, block % 2 + 1, 4))});
  }
  return layouts;
}

const WordTensor kTensors[] = {{{1, 13, 10}, 2}, {{5, 4, 7}, 3}};

TEST(BoxLayoutTest, EveryLayoutHoldsEveryElementOnce) {
  for (const WordTensor& tensor : kTensors) {
    for (const NamedLayout& layout : LayoutsOf(tensor)) {
      ASSERT_EQ(layout.boxes.size(), 4u);
      RankBoxes all;
      for (const RankBoxes& boxes : layout.boxes) {
        all.insert(all.end(), boxes.begin(), boxes.end());
      }
      EXPECT_EQ(WordsOf(all), tensor.words()) << layout.name;
      // No two have anything in common.
      EXPECT_EQ(PiecesBetween(all, all).size(), all.size()) << layout.name;
    }
  }
}

// Moves a tensor piece by piece, as the peers do.
TEST(CopyPieceTest, MovesEveryElementBetweenAllLayouts) {
  for (const WordTensor& tensor : kTensors) {
    for (const NamedLayout& from : LayoutsOf(tensor)) {
      for (const NamedLayout& to : LayoutsOf(tensor)) {
        std::vector<std::vector<uint32_t>> memory;
        const auto store = [&memory](const RankBoxes& boxes) {
          return StoreInTurn(boxes, memory.emplace_back(WordsOf(boxes)).data());
        };
        for (const RankBoxes& destination : to.boxes) {
          const std::vector<StoredBox> stored = store(destination);
          Spoil(tensor, stored);
          for (const RankBoxes& source : from.boxes) {
            const std::vector<StoredBox> sources = store(source);
            Fill(tensor, sources);
            for (const Piece& piece : PiecesBetween(source, destination)) {
              CopyPiece(stored[piece.to], sources[piece.from], piece.box);
            }
          }
          EXPECT_THAT(Check(tensor, stored), IsOk())
              << from.name << " to " << to.name;
        }
      }
    }
  }
}

TEST(CopyPieceTest, TakesBoxesWithGaps) {
  const WordTensor matrix = Matrix(4, 4);
  const WordBox box = Box(1, 1, 2, 2);
  std::vector<uint32_t> source(box.words()), wide(10, 7);
  Fill(matrix, {DenseBox(box, source.data())});
  const StoredBox destination{box, wide.data(), /*row_stride=*/5,
                              /*plane_stride=*/10};
  CopyPiece(destination, DenseBox(box, source.data()), box);
  EXPECT_THAT(Check(matrix, {destination}), IsOk());
  EXPECT_THAT(wide, ElementsAre(source[0], source[1], 7, 7, 7, source[2],
                                source[3], 7, 7, 7));
}

TEST(LowerBoundTest, CountsWhatARankDoesNotHave) {
  const WordTensor matrix = Matrix(4, 4);
  const BoxLayout rows = BoxesOf(matrix, RowsOver(matrix, 2));
  EXPECT_EQ(LowerBoundBytes(rows, rows), 0);
  EXPECT_EQ(LowerBoundBytes(rows, BoxesOf(matrix, ColumnsOver(matrix, 2))), 32);
  EXPECT_EQ(LowerBoundBytes(rows, BoxesOf(matrix, AllOnRankZero(matrix, 2))),
            32);
}

TEST(CheckTest, FindsOneWrongElementWhereverItIs) {
  const WordTensor matrix = Matrix(4, 6);
  std::vector<uint32_t> words(12);
  const std::vector<StoredBox> boxes =
      StoreInTurn({Box(0, 0, 3, 2), Box(1, 2, 2, 3)}, words.data());
  Fill(matrix, boxes);
  ASSERT_THAT(Check(matrix, boxes), IsOk());
  for (int i = 0; i < 6; ++i) {
    words[6 + i] ^= 1;
    EXPECT_THAT(Check(matrix, boxes),
                StatusIs(absl::StatusCode::kDataLoss,
                         HasSubstr(absl::StrCat("1 of 6 elements differ, the "
                                                "first in row ",
                                                1 + i / 3))));
    words[6 + i] ^= 1;
  }
}

TEST(CheckTest, OverwritingMakesEveryElementWrong) {
  const WordTensor matrix = Matrix(8, 5);
  std::vector<uint32_t> words(30);
  const StoredBox box = DenseBox(Box(2, 0, 6, 5), words.data());
  Spoil(matrix, {box});
  EXPECT_THAT(Check(matrix, {box}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("30 of 30")));
}

}  // namespace
}  // namespace sherd
