#include "sherd/core/comm/collective/call_signature.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd::internal {
namespace {

using ::testing::HasSubstr;

int32_t Number(CollectiveOp op) { return static_cast<int32_t>(op); }

constexpr int32_t kFloat32 = 13;
constexpr int32_t kInt32 = 6;

// The properties of one call that a transport knows.
CallSignature Sum(uint64_t bytes) {
  return SignatureOf({.op = Number(CollectiveOp::kAllReduce),
                      .dtype = kFloat32,
                      .bytes = bytes});
}

CallSignature Moved(std::optional<int32_t> type) {
  return SignatureOf({.op = Number(CollectiveOp::kBroadcast),
                      .root = 1,
                      .dtype = type.value_or(0),
                      .bytes = 8,
                      .is_typed = type.has_value()});
}

CallSignature Listed(const std::vector<uint64_t>& list) {
  CallSignature signature =
      SignatureOf({.op = Number(CollectiveOp::kAllGatherV)});
  for (const uint64_t length : list) signature.AddLength(length);
  return signature;
}

// Whether the two fit, by both forms of the question.
bool Fit(const CallSignature& a, const CallSignature& b) {
  const bool fits = CallAgreement(a).Fits(b);
  EXPECT_EQ(FindDifference({a, b}).has_value(), !fits);
  EXPECT_EQ(CallAgreement(b).Fits(a), fits);
  return fits;
}

TEST(CallSignatureTest, OperationsSizesReductionsAndPlacesDiffer) {
  EXPECT_TRUE(Fit(Sum(8), Sum(8)));
  EXPECT_FALSE(Fit(Sum(8), Sum(0)));
  EXPECT_FALSE(
      Fit(Sum(8), SignatureOf({.op = Number(CollectiveOp::kBarrier)})));
  CallFields max = {.op = Number(CollectiveOp::kAllReduce),
                    .dtype = kFloat32,
                    .reduction = static_cast<int32_t>(ReduceOp::kMax),
                    .bytes = 8};
  EXPECT_FALSE(Fit(Sum(8), SignatureOf(max)));
  max.reduction = 0;
  EXPECT_TRUE(Fit(Sum(8), SignatureOf(max)));
  max.on_device = true;
  EXPECT_FALSE(Fit(Sum(8), SignatureOf(max)));
}

TEST(CallSignatureTest, FieldsThatAnOperationDoesNotUseAreNotCompared) {
  const CallFields gather = {
      .op = Number(CollectiveOp::kAllGather), .root = 2, .bytes = 8};
  CallFields other = gather;
  other.root = 1;
  other.dtype = kInt32;
  other.reduction = 3;
  other.is_even = true;
  EXPECT_TRUE(Fit(SignatureOf(gather), SignatureOf(other)));
  // A rank's own length is its own affair in gather, and its root is not.
  const CallFields to_one = {.op = Number(CollectiveOp::kGather), .bytes = 8};
  other = to_one;
  other.bytes = 16;
  EXPECT_TRUE(Fit(SignatureOf(to_one), SignatureOf(other)));
  other.root = 1;
  EXPECT_FALSE(Fit(SignatureOf(to_one), SignatureOf(other)));
}

TEST(CallSignatureTest, ACallByBytesFitsEveryType) {
  EXPECT_TRUE(Fit(Moved(std::nullopt), Moved(kInt32)));
  EXPECT_TRUE(Fit(Moved(kInt32), Moved(kInt32)));
  EXPECT_FALSE(Fit(Moved(kFloat32), Moved(kInt32)));
  // Whichever rank calls by bytes, the two others contradict each other.
  for (const std::vector<CallSignature>& calls :
       {std::vector{Moved(std::nullopt), Moved(kFloat32), Moved(kInt32)},
        std::vector{Moved(kFloat32), Moved(std::nullopt), Moved(kInt32)}}) {
    CallAgreement agreement(calls[0]);
    EXPECT_TRUE(agreement.Fits(calls[1]));
    EXPECT_FALSE(agreement.Fits(calls[2]));
    const auto difference = FindDifference({calls[0], calls[1], calls[2]});
    ASSERT_TRUE(difference);
    EXPECT_EQ(difference->rank, std::nullopt);
  }
}

TEST(CallSignatureTest, AnAllToAllWithListsIsAnotherCallThanOneOfEqualBlocks) {
  CallFields blocks = {
      .op = Number(CollectiveOp::kAllToAllV), .bytes = 8, .is_even = true};
  CallFields lists = {.op = Number(CollectiveOp::kAllToAllV), .bytes = 8};
  EXPECT_FALSE(Fit(SignatureOf(blocks), SignatureOf(lists)));
  EXPECT_FALSE(ComparesMessages(blocks));
  EXPECT_TRUE(ComparesMessages(lists));
  CallFields longer = blocks;
  longer.bytes = 16;
  EXPECT_FALSE(Fit(SignatureOf(blocks), SignatureOf(longer)));
}

TEST(CallSignatureTest, ListsInCommonDifferInOrderToo) {
  EXPECT_TRUE(Fit(Listed({1, 2, 3}), Listed({1, 2, 3})));
  EXPECT_FALSE(Fit(Listed({1, 2, 3}), Listed({1, 3, 2})));
  EXPECT_FALSE(Fit(Listed({0, 3}), Listed({3, 0})));
  // Where lists are carried, and not their hash.
  const std::vector<std::vector<uint64_t>> lists = {{8, 8}, {8, 5}, {8, 8}};
  const CallSignature call =
      SignatureOf({.op = Number(CollectiveOp::kReduceScatter),
                   .dtype = kFloat32,
                   .bytes = 8});
  const auto difference =
      FindDifference({call, call, call}, [&](int rank) { return lists[rank]; });
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->rank, 1);
  EXPECT_EQ(difference->text,
            "the ranks made different calls: rank 1 called reduce_scatter "
            "(float32, sum, blocks of 8, 5 bytes); ranks 0, 2 called "
            "reduce_scatter (float32, sum, blocks of 8, 8 bytes)");
}

// Whether a carrier has lists or their hashes, the same rank deviates.
TEST(CallSignatureTest, ListsCountAsTheirHashesDo) {
  struct Case {
    std::vector<CallFields> calls;
    std::vector<std::vector<uint64_t>> lists;
  };
  const CallFields sum = {.op = Number(CollectiveOp::kReduceScatter),
                          .dtype = kFloat32};
  CallFields max = sum, whole = sum;
  max.reduction = static_cast<int32_t>(ReduceOp::kMax);
  whole.dtype = kInt32;
  const CallFields barrier = {.op = Number(CollectiveOp::kBarrier)};
  const CallFields gather = {.op = Number(CollectiveOp::kAllGatherV)};
  const std::vector<uint64_t> equal = {8, 8, 8}, other = {8, 8, 4};
  const Case cases[] = {
      {{sum, max, sum}, {equal, equal, other}},
      {{sum, sum, whole}, {equal, other, equal}},
      {{sum, sum, sum}, {equal, other, equal}},
      {{gather, gather, barrier}, {equal, other, {}}},
  };
  for (const Case& one : cases) {
    std::vector<std::optional<CallSignature>> with_lists, with_hashes;
    for (size_t r = 0; r < one.calls.size(); ++r) {
      with_lists.emplace_back(SignatureOf(one.calls[r]));
      with_hashes.emplace_back(SignatureOf(one.calls[r]));
      for (uint64_t length : one.lists[r]) with_hashes[r]->AddLength(length);
    }
    const auto by_lists =
        FindDifference(with_lists, [&](int r) { return one.lists[r]; });
    const auto by_hashes = FindDifference(with_hashes);
    ASSERT_TRUE(by_lists && by_hashes);
    EXPECT_EQ(by_lists->rank, by_hashes->rank) << by_lists->text;
  }
}

TEST(CallSignatureTest, LengthsAreThoseOfTheMessagesThatAnOperationHas) {
  const auto send_to = [](int rank) { return uint64_t{10} + rank; };
  const auto receive_from = [](int rank) { return uint64_t{20} + rank; };
  const auto lengths = [&](CollectiveOp op, int peer, int rank) {
    const MessageLengths found =
        LengthsWith(peer, rank, {.op = Number(op), .root = 1, .bytes = 7},
                    send_to, receive_from);
    return std::pair(found.sent, found.expected);
  };
  using Pair = std::pair<uint64_t, uint64_t>;
  EXPECT_EQ(lengths(CollectiveOp::kAllToAllV, 2, 0), Pair(12, 22));
  // To the root 1, and from it.
  EXPECT_EQ(lengths(CollectiveOp::kGather, 1, 0), Pair(7, 0));
  EXPECT_EQ(lengths(CollectiveOp::kGather, 0, 1), Pair(0, 20));
  EXPECT_EQ(lengths(CollectiveOp::kGather, 2, 0), Pair(0, 0));
  EXPECT_EQ(lengths(CollectiveOp::kScatter, 1, 0), Pair(0, 7));
  EXPECT_EQ(lengths(CollectiveOp::kScatter, 0, 1), Pair(10, 0));
  EXPECT_EQ(lengths(CollectiveOp::kAllReduce, 0, 1), Pair(0, 0));
}

TEST(CallSignatureTest, TheMinorityIsNamedAndUnknownCallsAreListed) {
  const auto difference =
      FindDifference({Sum(8), Sum(4), std::nullopt, Sum(8)});
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->rank, 1);
  EXPECT_EQ(difference->text,
            "the ranks made different calls: rank 1 called all_reduce "
            "(float32, sum, 4 bytes); ranks 0, 3 called all_reduce (float32, "
            "sum, 8 bytes); of rank 2 nothing is known");
  EXPECT_EQ(FindDifference({Sum(8), Sum(4)})->rank, std::nullopt);
  EXPECT_FALSE(FindDifference({Sum(8), std::nullopt}));
}

TEST(CallSignatureTest, TextsHaveTheComparedFields) {
  EXPECT_EQ(ToText(SignatureOf({.op = Number(CollectiveOp::kBarrier)})),
            "barrier");
  EXPECT_EQ(ToText(Moved(kInt32)), "broadcast (root 1, int32, 8 bytes)");
  EXPECT_EQ(
      ToText(SignatureOf({.op = Number(CollectiveOp::kScatter), .root = 3})),
      "scatter (root 3)");
  EXPECT_EQ(ToText(SignatureOf({.op = Number(CollectiveOp::kAllToAllV),
                                .bytes = 8,
                                .is_even = true,
                                .on_device = true})),
            "all_to_all_v (8 bytes to each rank, on its device)");
  const std::vector<uint64_t> many(9, 1);
  EXPECT_EQ(ToText(Listed(many), &many),
            "all_gather_v (blocks of 1, 1, 1, 1, 1, 1, 1, 1, … bytes)");
  EXPECT_THAT(ToText(Listed(many)), HasSubstr("blocks of 9 bytes in all"));
  CallSignature recorded = Listed(many);
  recorded.kind |= CallSignature::kWithoutLists;
  EXPECT_EQ(ToText(recorded), "all_gather_v");
}

// They may come from other processes.
TEST(CallSignatureTest, AnyEncodedSignatureHasAText) {
  EXPECT_EQ(ToText({.kind = 200}), "operation number 200");
  EXPECT_EQ(ToText({.kind = 4 | 0xff00 | 0xff0000, .bytes = 1}),
            "all_reduce (number 254, number 255, 1 bytes)");
  EXPECT_TRUE(FindDifference({CallSignature{.kind = 200}, Sum(8)}));
}

}  // namespace
}  // namespace sherd::internal
