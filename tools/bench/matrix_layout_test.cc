#include "sherd/tools/bench/matrix_layout.h"

#include <cstdint>
#include <numeric>
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

TEST(MatrixOfBytesTest, IsAboutSquare) {
  const auto small = MatrixOfBytes(4096);
  ASSERT_THAT(small, IsOk());
  EXPECT_EQ(small->rows, 512);
  EXPECT_EQ(small->cols, 2);
  const auto large = MatrixOfBytes(int64_t{512} << 20);
  ASSERT_THAT(large, IsOk());
  EXPECT_EQ(large->rows, 16384);
  EXPECT_EQ(large->cols, 8192);
}

TEST(MatrixOfBytesTest, RefusesWhatTheRowsDoNotDivide) {
  EXPECT_THAT(MatrixOfBytes(1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(MatrixOfBytes(4096 + 4),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("multiple of 2048")));
}

TEST(MatrixLayoutTest, LastRanksMayHaveLessOrNothing) {
  const Matrix matrix{5, 3};
  EXPECT_THAT(RowsOver(matrix, 4),
              ElementsAre(MatrixBox{0, 0, 2, 3}, MatrixBox{2, 0, 2, 3},
                          MatrixBox{4, 0, 1, 3}, MatrixBox{5, 0, 0, 3}));
  EXPECT_THAT(ColumnsOver(matrix, 2),
              ElementsAre(MatrixBox{0, 0, 5, 2}, MatrixBox{0, 2, 5, 1}));
}

TEST(MatrixLayoutTest, TheGridHasTwoRowsAndIsColumnsForTwoRanks) {
  const Matrix matrix{6, 4};
  EXPECT_THAT(GridOver(matrix, 4),
              ElementsAre(MatrixBox{0, 0, 3, 2}, MatrixBox{0, 2, 3, 2},
                          MatrixBox{3, 0, 3, 2}, MatrixBox{3, 2, 3, 2}));
  EXPECT_EQ(GridOver(matrix, 2), ColumnsOver(matrix, 2));
}

TEST(MatrixLayoutTest, EveryLayoutHoldsEveryElementOnce) {
  const Matrix matrix{11, 7};
  for (const int ranks : {2, 4, 6, 16}) {
    for (const auto layout_of :
         {RowsOver, ColumnsOver, GridOver, AllOnRankZero}) {
      std::vector<int> seen(matrix.rows * matrix.cols);
      const MatrixLayout layout = layout_of(matrix, ranks);
      ASSERT_EQ(layout.size(), static_cast<size_t>(ranks));
      for (const MatrixBox& box : layout) {
        for (int64_t row = 0; row < box.rows; ++row) {
          for (int64_t col = 0; col < box.cols; ++col) {
            ++seen[(box.row + row) * matrix.cols + box.col + col];
          }
        }
      }
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << ranks;
    }
  }
}

// Moves a matrix piece by piece, as the peers do.
void CopyAll(const MatrixLayout& from,
             const std::vector<std::vector<uint32_t>>& have,
             const MatrixLayout& to, std::vector<std::vector<uint32_t>>& get) {
  for (size_t d = 0; d < to.size(); ++d) {
    for (size_t s = 0; s < from.size(); ++s) {
      CopyPiece(get[d].data(), to[d], have[s].data(), from[s],
                Intersect(from[s], to[d]));
    }
  }
}

TEST(CopyPieceTest, MovesEveryElementBetweenAllLayouts) {
  const Matrix matrix{13, 10};
  for (const auto from_of : {RowsOver, ColumnsOver, GridOver}) {
    for (const auto to_of : {RowsOver, ColumnsOver, GridOver, AllOnRankZero}) {
      const MatrixLayout from = from_of(matrix, 4);
      const MatrixLayout to = to_of(matrix, 4);
      std::vector<std::vector<uint32_t>> have, get;
      for (const MatrixBox& box : from) {
        FillBox(matrix, box, have.emplace_back(box.words()).data());
      }
      for (const MatrixBox& box : to) {
        SpoilBox(matrix, box, get.emplace_back(box.words()).data());
      }
      CopyAll(from, have, to, get);
      for (size_t rank = 0; rank < to.size(); ++rank) {
        EXPECT_THAT(CheckBox(matrix, to[rank], get[rank].data()), IsOk());
      }
    }
  }
}

TEST(CheckBoxTest, FindsOneWrongElementWhereverItIs) {
  const Matrix matrix{4, 6};
  const MatrixBox box{1, 2, 2, 3};
  std::vector<uint32_t> words(box.words());
  FillBox(matrix, box, words.data());
  ASSERT_THAT(CheckBox(matrix, box, words.data()), IsOk());
  for (int64_t i = 0; i < box.words(); ++i) {
    words[i] ^= 1;
    EXPECT_THAT(CheckBox(matrix, box, words.data()),
                StatusIs(absl::StatusCode::kDataLoss,
                         HasSubstr(absl::StrCat("1 of 6 elements differ, the "
                                                "first in row ",
                                                1 + i / box.cols))));
    words[i] ^= 1;
  }
}

TEST(CheckBoxTest, AfterSpoilingEverythingIsWrong) {
  const Matrix matrix{8, 5};
  const MatrixBox box{2, 0, 6, 5};
  std::vector<uint32_t> words(box.words());
  SpoilBox(matrix, box, words.data());
  EXPECT_THAT(CheckBox(matrix, box, words.data()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("30 of 30")));
}

}  // namespace
}  // namespace sherd
