#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd {
namespace {

using ::sherd::testing::Chunks;
using ::sherd::testing::ExpectSameError;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kRange = absl::StatusCode::kOutOfRange;

TEST(NarrowTest, SharesTheElementsAndCutsTheLayout) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0, 3), {9, 4}));
    FillPattern(tensor);
    // Rows 2 to 4 are on ranks 0 and 1.
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor view,
                               tensor.Narrow({2, 1}, {3, 2}));
    EXPECT_THAT(view.size(), ElementsAre(3, 2));
    ASSERT_THAT(view.metadata().shards, SizeIs(2));
    EXPECT_EQ(view.metadata().shards[0],
              (ShardMetadata{{0, 0}, {1, 2}, Placement("rank:0")}));
    EXPECT_EQ(view.metadata().shards[1],
              (ShardMetadata{{1, 0}, {2, 2}, Placement("rank:1")}));
    ASSERT_THAT(view.local_shards(), SizeIs(group.rank() < 2 ? 1 : 0));
    EXPECT_TRUE(HasPattern(view, {2, 1}, {9, 4}));
    if (group.rank() == 2) return;
    EXPECT_FALSE(view.is_contiguous() && group.rank() == 1);
    EXPECT_THAT(ShardedTensor(view).Fill(0), IsOk());
    EXPECT_FALSE(HasPattern(tensor));
  });
}

TEST(NarrowTest, MovesNoMoreThanTheBox) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Empty(Chunks(0, 3), {9, 4}, {.dtype = kInt64}));
    FillPattern(tensor);
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor view,
                               tensor.Narrow({2, 1}, {3, 2}));
    ReshardStats stats;
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor slice,
                               view.Gather(2, Tensor(), {.stats = &stats}));
    EXPECT_EQ(stats.bytes_received, group.rank() == 2 ? 3 * 2 * 8 : 0);
    const int64_t sent[] = {1 * 2 * 8, 2 * 2 * 8, 0};
    EXPECT_EQ(stats.bytes_sent, sent[group.rank()]);
    if (slice.defined()) {
      EXPECT_TRUE(HasPattern(slice, {2, 1}, {9, 4}));
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor everywhere, view.AllGather());
    EXPECT_TRUE(HasPattern(everywhere, {2, 1}, {9, 4}));
    // The tensor stays as it is when the view gets shards of its own.
    ASSERT_THAT(view.Reshard(Chunks(1, 3)), IsOk());
    EXPECT_TRUE(HasPattern(view, {2, 1}, {9, 4}));
    EXPECT_THAT(view.Fill(1), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
  });
}

TEST(NarrowTest, IsADestinationToo) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor whole,
                               ShardedTensor::Zeros(Chunks(1, 2), {6, 6}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor part,
                               ShardedTensor::Ones(Chunks(0, 2), {2, 3}));
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor hole,
                               whole.Narrow({1, 2}, {2, 3}));
    ASSERT_THAT(part.ReshardInto(hole), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor result, whole.AllGather());
    for (int64_t row = 0; row < 6; ++row) {
      for (int64_t column = 0; column < 6; ++column) {
        const bool inside = row >= 1 && row < 3 && column >= 2 && column < 5;
        EXPECT_EQ(result.At<float>({row, column}).value(), inside ? 1 : 0);
      }
    }
  });
}

TEST(NarrowTest, OneDimensionCountsFromBothEnds) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0, 2), {6, 4}));
    FillPattern(tensor);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor columns,
                               tensor.Narrow(-1, 1, 2));
    EXPECT_THAT(columns.size(), ElementsAre(6, 2));
    EXPECT_TRUE(HasPattern(columns, {0, 1}, {6, 4}));
    // A view of a view.
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor rows,
                               columns.Narrow(0, 2, 3));
    EXPECT_TRUE(HasPattern(rows, {2, 1}, {6, 4}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor all, tensor.Narrow(0, 0, 6));
    EXPECT_EQ(all.metadata(), tensor.metadata());
    EXPECT_EQ(*all.spec(), *tensor.spec());
  });
}

TEST(NarrowTest, MayBeEmptyOrAScalar) {
  RunLocalRanks(2, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0, 2), {6, 4}));
    for (const int64_t start : {0, 3, 6}) {
      SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor nothing,
                                 tensor.Narrow(0, start, 0));
      EXPECT_THAT(nothing.size(), ElementsAre(0, 4));
      EXPECT_THAT(nothing.metadata().shards, SizeIs(1));
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor gathered, nothing.AllGather());
      EXPECT_THAT(gathered.sizes(), ElementsAre(0, 4));
      EXPECT_THAT(nothing.Reshard(Chunks(1, 2)), IsOk());
    }
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto on_one,
        EnumerableShardingSpec::Create({{.placement = "rank:1/cpu"}}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor scalar,
                               ShardedTensor::Empty(on_one, {}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor same, scalar.Narrow({}, {}));
    EXPECT_EQ(same.metadata(), scalar.metadata());
  });
}

TEST(NarrowTest, KeepsReplicas) {
  RunLocalRanks(4, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto spec,
        MeshShardingSpec::FromPlacements(
            {.shape = {2, 2}, .placements = PlacementsOnRanks(4)},
            {MeshPlacement::Shard(0), MeshPlacement::Replicate()}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Empty(spec, {6, 4}));
    FillPattern(tensor);
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor view,
                               tensor.Narrow({2, 1}, {3, 2}));
    EXPECT_THAT(view.metadata().shards, SizeIs(4));
    EXPECT_TRUE(HasPattern(view, {2, 1}, {6, 4}));
    ASSERT_THAT(view.Reshard(Chunks(1, 4)), IsOk());
    EXPECT_TRUE(HasPattern(view, {2, 1}, {6, 4}));
  });
}

TEST(NarrowTest, RefusesBoxesThatAreNotInside) {
  RunLocalRanks(1, [](ProcessGroup&) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Zeros(Chunks(0, 1), {6, 4}));
    constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
    struct Case {
      int64_t start, length;
    };
    for (const Case& c : {Case{-1, 2}, Case{0, 7}, Case{6, 1}, Case{2, -1},
                          Case{7, 0}, Case{1, kHuge}, Case{kHuge, kHuge}}) {
      EXPECT_THAT(tensor.Narrow(0, c.start, c.length),
                  StatusIs(kRange, "are not inside [0, 6]"));
    }
    EXPECT_THAT(tensor.Narrow(2, 0, 1),
                StatusIs(kRange, "Dimension out of range"));
    EXPECT_THAT(tensor.Narrow({0}, {1, 1}), StatusIs(kRange, "1 offsets"));
    EXPECT_THAT(tensor.Narrow({0, 0}, {1}), StatusIs(kRange, "1 sizes"));
  });
}

TEST(NarrowTest, RanksThatCutDifferentBoxesFindOut) {
  // The boxes have the same layout.
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Zeros(Chunks(0, 1), {6, 4}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor view,
                               tensor.Narrow(0, group.rank(), 3));
    EXPECT_THAT(view.Gather(),
                StatusIs(kInvalid,
                         "rank 1 passed tensor that is a view at [1, 0]; rank "
                         "0 passed tensor that is a view at [0, 0]"));
  });
}

TEST(NarrowTest, AnyBoxOfAnyLayoutIsTheRightOne) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int i = 0; i < 30; ++i) {
    const Dims size = {1 + below(9), 1 + below(9), 1 + below(5)};
    Dims offsets, sizes;
    for (const int64_t n : size) {
      offsets.push_back(below(n + 1));
      sizes.push_back(below(n - offsets.back() + 1));
    }
    const int from = static_cast<int>(below(3));
    const int to = static_cast<int>(below(3));
    RunLocalRanks(3, [&](ProcessGroup&) {
      SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                                 ShardedTensor::Empty(Chunks(from, 3), size));
      FillPattern(tensor);
      SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor view,
                                 tensor.Narrow(offsets, sizes));
      EXPECT_TRUE(HasPattern(view, offsets, size));
      ASSERT_THAT(view.Reshard(Chunks(to, 3)), IsOk());
      EXPECT_TRUE(HasPattern(view, offsets, size));
    });
  }
}

}  // namespace
}  // namespace sherd
