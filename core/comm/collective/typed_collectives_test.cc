#include "sherd/core/comm/collective/typed_collectives.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kRoot = 1;

using Floats = std::vector<float>;
using In = absl::Span<const float>;
using Out = absl::Span<float>;

// Makes both forms of a call with a result that begins as `before`, and expects
// `after` of each.
template <typename Call, typename CallAsync>
void ExpectBoth(const Call& call, const CallAsync& call_async,
                const Floats& before, const Floats& after) {
  Floats result = before;
  EXPECT_THAT(call(absl::MakeSpan(result)), IsOk());
  EXPECT_EQ(result, after);
  result = before;
  EXPECT_THAT(call_async(absl::MakeSpan(result)).Wait(), IsOk());
  EXPECT_EQ(result, after);
}

TEST(TypedCollectivesTest, ReduceElementsInPlaceAndApart) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const float r = static_cast<float>(group.rank());
    const Floats send = {r, r + 1};
    ExpectBoth(
        [&](Out out) { return group.AllReduce<float>(out, ReduceOp::kSum); },
        [&](Out out) {
          return group.AllReduceAsync<float>(out, ReduceOp::kSum);
        },
        send, {3, 6});
    ExpectBoth(
        [&](Out out) {
          return group.AllReduce<float>(send, out, ReduceOp::kMax);
        },
        [&](Out out) {
          return group.AllReduceAsync<float>(send, out, ReduceOp::kMax);
        },
        {0, 0}, {2, 3});
    const bool is_root = group.rank() == kRoot;
    ExpectBoth(
        [&](Out out) {
          return group.Reduce<float>(send, out, ReduceOp::kSum, kRoot);
        },
        [&](Out out) {
          return group.ReduceAsync<float>(send, out, ReduceOp::kSum, kRoot);
        },
        is_root ? Floats{0, 0} : Floats(), is_root ? Floats{3, 6} : Floats());
  });
}

TEST(TypedCollectivesTest, ReduceAndScatterElements) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const float r = static_cast<float>(group.rank());
    const Floats send = {r, 10 + r, 20 + r};
    const std::vector<In> blocks = {
        In(send).subspan(0, 1), In(send).subspan(1, 1), In(send).subspan(2)};
    const Floats after = {30 * r + 3};
    ExpectBoth(
        [&](Out out) {
          return group.ReduceScatter<float>(send, out, ReduceOp::kSum);
        },
        [&](Out out) {
          return group.ReduceScatterAsync<float>(send, out, ReduceOp::kSum);
        },
        {0}, after);
    ExpectBoth(
        [&](Out out) {
          return group.ReduceScatterV<float>(blocks, out, ReduceOp::kSum);
        },
        [&](Out out) {
          return group.ReduceScatterVAsync<float>(blocks, out, ReduceOp::kSum);
        },
        {0}, after);
  });
}

TEST(TypedCollectivesTest, MoveElementsFromAndToARoot) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const float r = static_cast<float>(group.rank());
    const bool is_root = group.rank() == kRoot;
    ExpectBoth([&](Out out) { return group.Broadcast<float>(out, kRoot); },
               [&](Out out) { return group.BroadcastAsync<float>(out, kRoot); },
               {r}, {kRoot});

    const Floats mine = {r};
    const Floats before(is_root ? kRanks : 0);
    const Floats after = is_root ? Floats{0, 1, 2} : Floats();
    ExpectBoth(
        [&](Out out) { return group.Gather<float>(mine, out, kRoot); },
        [&](Out out) { return group.GatherAsync<float>(mine, out, kRoot); },
        before, after);
    const auto split = [&](Out out) {
      return is_root ? std::vector<Out>{out.subspan(0, 1), out.subspan(1, 1),
                                        out.subspan(2)}
                     : std::vector<Out>();
    };
    ExpectBoth(
        [&](Out out) { return group.GatherV<float>(mine, split(out), kRoot); },
        [&](Out out) {
          return group.GatherVAsync<float>(mine, split(out), kRoot);
        },
        before, after);

    const Floats all = is_root ? Floats{5, 6, 7} : Floats();
    std::vector<In> parts;
    for (const float& element : all) parts.push_back(In(&element, 1));
    ExpectBoth(
        [&](Out out) { return group.Scatter<float>(all, out, kRoot); },
        [&](Out out) { return group.ScatterAsync<float>(all, out, kRoot); },
        {0}, {5 + r});
    ExpectBoth(
        [&](Out out) { return group.ScatterV<float>(parts, out, kRoot); },
        [&](Out out) { return group.ScatterVAsync<float>(parts, out, kRoot); },
        {0}, {5 + r});
  });
}

TEST(TypedCollectivesTest, ExchangeElementsAmongAll) {
  RunLocalRanks(kRanks, [](ProcessGroup& group) {
    const float r = static_cast<float>(group.rank());
    const Floats mine = {r};
    const auto split = [](Out out) {
      return std::vector<Out>{out.subspan(0, 1), out.subspan(1, 1),
                              out.subspan(2)};
    };
    const Floats before(kRanks);
    ExpectBoth([&](Out out) { return group.AllGather<float>(mine, out); },
               [&](Out out) { return group.AllGatherAsync<float>(mine, out); },
               before, {0, 1, 2});
    ExpectBoth(
        [&](Out out) { return group.AllGatherV<float>(mine, split(out)); },
        [&](Out out) { return group.AllGatherVAsync<float>(mine, split(out)); },
        before, {0, 1, 2});

    const Floats send = {10 * r, 10 * r + 1, 10 * r + 2};
    const std::vector<In> blocks = {
        In(send).subspan(0, 1), In(send).subspan(1, 1), In(send).subspan(2)};
    const Floats after = {r, 10 + r, 20 + r};
    ExpectBoth([&](Out out) { return group.AllToAll<float>(send, out); },
               [&](Out out) { return group.AllToAllAsync<float>(send, out); },
               before, after);
    ExpectBoth(
        [&](Out out) { return group.AllToAllV<float>(blocks, split(out)); },
        [&](Out out) {
          return group.AllToAllVAsync<float>(blocks, split(out));
        },
        before, after);
  });
}

TEST(TypedCollectivesTest, SendElementsFromRankToRank) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    std::vector<int64_t> numbers = {1, 2, 3};
    if (group.rank() == 0) {
      EXPECT_THAT(group.Send<int64_t>(numbers, 1), IsOk());
      EXPECT_THAT(group.SendAsync<int64_t>(numbers, 1, 7).Wait(), IsOk());
      return;
    }
    for (const int64_t tag : {0, 7}) {
      numbers.assign(3, 0);
      const absl::Span<int64_t> to = absl::MakeSpan(numbers);
      EXPECT_THAT(tag == 0 ? group.Recv<int64_t>(to, 0)
                           : group.RecvAsync<int64_t>(to, 0, tag).Wait(),
                  IsOk());
      EXPECT_THAT(numbers, ElementsAre(1, 2, 3));
    }
  });
}

TEST(TypedCollectivesTest, TypesThatDifferAreAnErrorThatHasBoth) {
  std::vector<absl::Status> statuses(kRanks);
  RunLocalRanks(kRanks, [&](ProcessGroup& group) {
    Floats floats = {1};
    std::vector<int32_t> integers = {1};
    statuses[static_cast<size_t>(group.rank())] =
        group.rank() == 2
            ? group.Broadcast<int32_t>(absl::MakeSpan(integers), 0)
            : group.Broadcast<float>(absl::MakeSpan(floats), 0);
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            AllOf(HasSubstr("float32"), HasSubstr("int32")))));
}

}  // namespace
}  // namespace sherd
