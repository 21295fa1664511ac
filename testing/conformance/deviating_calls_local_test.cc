// Random sequences of collectives in which one rank deviates, between threads,
// and what such sequences are.

#include <cstdint>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "sherd/testing/conformance/conformance_case.h"
#include "sherd/testing/conformance/deviating_calls.h"
#include "sherd/testing/local_ranks.h"

namespace sherd::testing::internal {
namespace {

TEST(DeviatingCallsTest, EndInRightDataOrNameTheRank) {
  RunLocalRanks(4, [](ProcessGroup& group) {
    ConformanceRank rank = {.group = group, .ranks_are_threads = true};
    const absl::Status status = TryRandomSequences(rank, 2'000);
    EXPECT_TRUE(status.ok()) << status.message();
  });
}

TEST(RandomSequenceTest, DeviatesInEachRespectAndNotAtAll) {
  int sound = 0, leaves = 0, in_the_call = 0, in_a_draw = 0, in_a_length = 0;
  int empty = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const CallSequence sequence = RandomSequence(seed, 4);
    sound += !sequence.deviating;
    leaves += sequence.leaves;
    in_the_call += sequence.contradiction == Contradiction::kInTheCall;
    in_a_draw += sequence.contradiction == Contradiction::kInADraw;
    in_a_length += sequence.contradiction == Contradiction::kInALength;
    if (!sequence.deviating || sequence.leaves) continue;
    const CallSpec& call = sequence.calls[*sequence.deviating][sequence.step];
    empty += call.op == CollectiveOp::kAllReduce && call.count == 0;
  }
  EXPECT_GT(sound, 20);
  EXPECT_GT(leaves, 20);
  EXPECT_GT(in_the_call, 100);
  EXPECT_GT(in_a_draw, 20);
  EXPECT_GT(in_a_length, 20);
  EXPECT_GT(empty, 0);
}

TEST(FindContradictionTest, ACallByBytesFitsOneWithAType) {
  const CallSpec bytes = {.op = CollectiveOp::kBroadcast, .count = 8};
  CallSpec floats = bytes, integers = bytes;
  floats.type = kFloat32;
  integers.type = kInt32;
  EXPECT_EQ(FindContradiction({bytes, floats, bytes}), Contradiction::kNone);
  EXPECT_EQ(FindContradiction({floats, bytes, integers}),
            Contradiction::kInADraw);
  EXPECT_EQ(FindContradiction({floats, integers, floats}),
            Contradiction::kInTheCall);
}

TEST(FindContradictionTest, PairsContradictEachOtherAboutLengths) {
  const CallSpec right = {
      .op = CollectiveOp::kGather, .lists = true, .count = 8};
  CallSpec longer = right;
  longer.count = 9;
  EXPECT_EQ(FindContradiction({right, right}), Contradiction::kNone);
  EXPECT_EQ(FindContradiction({right, longer}), Contradiction::kInALength);
}

}  // namespace
}  // namespace sherd::testing::internal
