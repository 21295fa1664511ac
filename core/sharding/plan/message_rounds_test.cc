#include "sherd/core/sharding/plan/message_rounds.h"

#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd::internal {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> BytesOf(const std::vector<MessageRound>& rounds) {
  std::vector<int64_t> bytes;
  for (const MessageRound& round : rounds) bytes.push_back(round.bytes);
  return bytes;
}

TEST(MessageRoundsTest, FillsEachMessageWithWholeRows) {
  // Rows of 5 elements of 4 bytes: three fit in 64.
  BoxCopy copy = {{{10, 20}, {7, 5}}};
  copy.src_shard = 3;
  copy.dst_shard = 4;
  const std::vector<MessageRound> rounds = CutIntoRounds({&copy, 1}, 4, 64);
  EXPECT_THAT(BytesOf(rounds), ElementsAre(60, 60, 20));
  ASSERT_EQ(rounds[1].pieces.size(), 1u);
  const BoxPiece& piece = rounds[1].pieces[0];
  EXPECT_EQ(piece.src_shard, 3);
  EXPECT_EQ(piece.dst_shard, 4);
  EXPECT_THAT(piece.offsets, ElementsAre(13, 20));
  EXPECT_THAT(piece.sizes, ElementsAre(3, 5));
  EXPECT_EQ(piece.bytes, 60);
}

TEST(MessageRoundsTest, PutsSmallCopiesInOneMessage) {
  std::vector<BoxCopy> copies;
  for (int i = 0; i < 5; ++i) {
    copies.push_back({{{i}, {2}}});
    copies.back().dst_shard = i;
  }
  EXPECT_THAT(BytesOf(CutIntoRounds(copies, 8, 1000)), ElementsAre(80));
  EXPECT_THAT(BytesOf(CutIntoRounds(copies, 8, 40)), ElementsAre(40, 40));
  EXPECT_THAT(BytesOf(CutIntoRounds({}, 8, 40)), ElementsAre());
}

TEST(MessageRoundsTest, CutsRowsThatDoNotFitInAMessage) {
  const BoxCopy copy = {WholeBox({2, 1, 5})};
  EXPECT_THAT(BytesOf(CutIntoRounds({&copy, 1}, 2, 4)),
              ElementsAre(4, 4, 4, 4, 4));
  EXPECT_THAT(BytesOf(CutIntoRounds({&copy, 1}, 2, 2)),
              ::testing::AllOf(::testing::SizeIs(10), ::testing::Each(2)));
}

TEST(MessageRoundsTest, AReductionHasRoomForAllSummandsAndTheResult) {
  using ::sherd::testing::IsOkAndHolds;
  // Two sent, two received and one reduced.
  EXPECT_THAT(MaxReductionMessageBytes(5000, 3, 4), IsOkAndHolds(1000));
  EXPECT_THAT(MaxReductionMessageBytes(32, 3, 4), IsOkAndHolds(6));
  EXPECT_THAT(MaxReductionMessageBytes(31, 3, 4),
              ::sherd::testing::StatusIs(
                  absl::StatusCode::kInvalidArgument,
                  "max_staging_bytes is 31, expected at least 32 for 3 ranks"));
  // Alone, a rank reduces what it has.
  EXPECT_THAT(MaxReductionMessageBytes(4, 1, 4), IsOkAndHolds(4));
  EXPECT_THAT(MaxReductionMessageBytes(3, 1, 4),
              ::sherd::testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                         "expected at least 4 for 1 ranks"));
}

TEST(MessageRoundsTest, MovesAScalar) {
  const BoxCopy copy;
  const std::vector<MessageRound> rounds = CutIntoRounds({&copy, 1}, 16, 16);
  EXPECT_THAT(BytesOf(rounds), ElementsAre(16));
  EXPECT_TRUE(rounds[0].pieces[0].sizes.empty());
}

// The row-major number of each element of the pieces, in message order.
std::vector<int64_t> ElementOrder(const std::vector<MessageRound>& rounds,
                                  const Dims& size) {
  std::vector<int64_t> order;
  for (const MessageRound& round : rounds) {
    for (const BoxPiece& piece : round.pieces) {
      Dims at = piece.offsets;
      while (true) {
        int64_t number = 0;
        for (size_t d = 0; d < at.size(); ++d)
          number = number * size[d] + at[d];
        order.push_back(number);
        size_t d = at.size();
        while (d > 0 &&
               ++at[d - 1] == piece.offsets[d - 1] + piece.sizes[d - 1]) {
          at[d - 1] = piece.offsets[d - 1];
          --d;
        }
        if (d == 0) break;
      }
    }
  }
  return order;
}

TEST(MessageRoundsTest, KeepsEveryElementInRowMajorOrderWithinTheLimit) {
  const uint64_t seed = sherd::testing::RandomSeed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 500; ++i) {
    const Dims size = sherd::testing::RandomSize(4, 600, random);
    const int64_t elements = Volume(size);
    if (elements == 0) continue;
    const BoxCopy copy = {WholeBox(size)};
    const size_t element_size = size_t{1} << (random() % 5);
    const int64_t limit =
        static_cast<int64_t>(element_size + random() % (element_size * 200));
    const std::vector<MessageRound> rounds =
        CutIntoRounds({&copy, 1}, element_size, limit);
    const std::vector<int64_t> order = ElementOrder(rounds, size);
    ASSERT_EQ(order.size(), static_cast<size_t>(elements)) << "seed " << seed;
    for (int64_t k = 0; k < elements; ++k) ASSERT_EQ(order[k], k);
    for (const MessageRound& round : rounds) {
      int64_t bytes = 0;
      for (const BoxPiece& piece : round.pieces) {
        EXPECT_GT(piece.bytes, 0);
        bytes += piece.bytes;
      }
      EXPECT_EQ(bytes, round.bytes);
      EXPECT_LE(bytes, limit);
    }
  }
}

}  // namespace
}  // namespace sherd::internal
