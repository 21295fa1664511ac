#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/tensor_pattern.h"

// Tensors that are assembled from the shards of ranks, on four ranks and on
// every backend: the documented behaviour of local shards and local tensors.

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

class AssembledTensorTest : public sherd::testing::PlacedFixture<
                                sherd::testing::PersistentDistributedTest> {
 protected:
  // The box of this rank, with its part of the pattern.
  Shard Local(absl::Span<const int64_t> offsets,
              absl::Span<const int64_t> sizes,
              absl::Span<const int64_t> whole_size) {
    Tensor tensor = Tensor::Empty(sizes, {.device = DeviceOf(rank())}).value();
    FillPattern(tensor, offsets, whole_size);
    return Shard::FromTensorAndOffsets(tensor, offsets, rank()).value();
  }

  static void ExpectShared(const ShardedTensor& tensor, const Shard& shard) {
    ASSERT_THAT(tensor.local_shards(), SizeIs(1));
    EXPECT_EQ(tensor.local_shards()[0].tensor.data(), shard.tensor.data());
    EXPECT_EQ(tensor.local_shards()[0].metadata, shard.metadata);
  }
};

SHERD_DIST_TEST_F(AssembledTensorTest, QuartersMakeATensor) {
  const Shard mine = Local({rank() / 2 * 5, rank() % 2 * 5}, {5, 5}, {10, 10});
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::FromLocalShards({mine}, {10, 10}));
  EXPECT_THAT(tensor.size(), ElementsAre(10, 10));
  ExpectShared(tensor, mine);
  ASSERT_THAT(tensor.metadata().shards, SizeIs(4));
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(tensor.metadata().shards[r],
              (ShardMetadata{{r / 2 * 5, r % 2 * 5}, {5, 5}, At(r)}));
  }
  EXPECT_TRUE(HasPattern(tensor));
}

SHERD_DIST_TEST_F(AssembledTensorTest, RowsAreKnownToBeChunks) {
  const Shard mine = Local({3 * rank(), 0}, {3, 5}, {12, 5});
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                             ShardedTensor::FromLocalShards({mine}, {12, 5}));
  EXPECT_EQ(*tensor.spec(), *Chunks(0));
  ASSERT_THAT(tensor.Reshard(Chunks(1)), IsOk());
  EXPECT_TRUE(HasPattern(tensor));
}

SHERD_DIST_TEST_F(AssembledTensorTest, RanksMayHaveDifferentNumbersOfShards) {
  // Rank 0 has two of three rows' bands, rank 1 none.
  std::vector<Shard> mine;
  if (rank() == 0) {
    mine = {Local({0, 0}, {2, 4}, {8, 4}), Local({6, 0}, {2, 4}, {8, 4})};
  } else if (rank() == 2) {
    mine = {Local({2, 0}, {3, 4}, {8, 4})};
  } else if (rank() == 3) {
    mine = {Local({5, 0}, {1, 4}, {8, 4})};
  }
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                             ShardedTensor::FromLocalShards(mine, {8, 4}));
  EXPECT_THAT(tensor.local_shards(), SizeIs(mine.size()));
  EXPECT_THAT(tensor.metadata().shards, SizeIs(4));
  EXPECT_TRUE(HasPattern(tensor));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.Gather(1));
  if (rank() == 1) {
    EXPECT_TRUE(HasPattern(whole, {0, 0}, {8, 4}));
  }
}

// An embedding's rows, of which each rank knows only how many it has.
SHERD_DIST_TEST_F(AssembledTensorTest, OffsetsFollowFromTheSizes) {
  const int64_t rows[] = {3, 1, 0, 4};
  const int64_t begins[] = {0, 3, 4, 4};
  const Shard mine = Local({begins[rank()], 0}, {rows[rank()], 6}, {8, 6});
  Shard unplaced = mine;
  unplaced.metadata.offsets = {0, 0};
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::FromLocalShards({unplaced}, {kUnknownSize, 6}));
  EXPECT_THAT(tensor.size(), ElementsAre(8, 6));
  ExpectShared(tensor, mine);
  EXPECT_TRUE(HasPattern(tensor));
}

SHERD_DIST_TEST_F(AssembledTensorTest, InASmallerGroupToo) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto part, group().NewGroup({1, 3}));
  if (!part->is_member()) return;
  const int64_t row = rank() == 1 ? 0 : 5;
  const Shard mine = Local({row, 0}, {5, 5}, {10, 5});
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor tensor,
      ShardedTensor::FromLocalShards({mine}, {10, 5}, {.group = part}));
  EXPECT_EQ(*tensor.spec(), *Chunks(0, {1, 3}));
  ASSERT_THAT(tensor.Reshard(Chunks(1, {3, 1})), IsOk());
  EXPECT_TRUE(HasPattern(tensor));
}

SHERD_DIST_TEST_F(AssembledTensorTest, FromTheLocalTensorOfEachRank) {
  for (const int dim : {0, 1, -1}) {
    const ShardingSpecPtr spec = Chunks(dim, {2, 1, 3, 0});
    // The part that the spec gives to this rank.
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor model,
                               ShardedTensor::Empty(spec, {10, 7}));
    const ShardMetadata& box = model.local_shards()[0].metadata;
    const Shard mine = Local(box.offsets, box.sizes, {10, 7});
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::FromLocalTensor(mine.tensor, spec, {10, 7}));
    EXPECT_EQ(tensor.metadata(), model.metadata());
    EXPECT_EQ(tensor.local_shards()[0].tensor.data(), mine.tensor.data());
    EXPECT_TRUE(HasPattern(tensor));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.AllGather());
    EXPECT_TRUE(HasPattern(whole, {0, 0}, {10, 7}));
  }
}

SHERD_DIST_TEST_F(AssembledTensorTest, ARankWithoutAShardHasNoLocalTensor) {
  const ShardingSpecPtr spec = Chunks(0, {3, 1});
  Tensor local;
  if (rank() % 2 == 1) {
    local = Local({rank() == 3 ? 0 : 3, 0}, {3, 2}, {6, 2}).tensor;
  }
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::FromLocalTensor(local, spec, {6, 2}));
  EXPECT_TRUE(HasPattern(tensor));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.Gather(0));
  if (rank() == 0) {
    EXPECT_TRUE(HasPattern(whole, {0, 0}, {6, 2}));
  }
}

SHERD_DIST_TEST_F(AssembledTensorTest, FromShardsAndTheMetadataOfAll) {
  ShardedTensorMetadata metadata = {.size = {10, 10}};
  for (int r = 0; r < 4; ++r) {
    metadata.shards.push_back({{r / 2 * 5, r % 2 * 5}, {5, 5}, At(r)});
  }
  const Shard mine = Local({rank() / 2 * 5, rank() % 2 * 5}, {5, 5}, {10, 10});
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor tensor,
      ShardedTensor::FromLocalShardsAndMetadata({mine}, metadata));
  EXPECT_EQ(tensor.metadata(), metadata);
  ExpectShared(tensor, mine);
  ASSERT_THAT(tensor.Reshard(Chunks(0)), IsOk());
  EXPECT_TRUE(HasPattern(tensor));
}

// Each rank may describe the shards of others as empty: a view of its own.
SHERD_DIST_TEST_F(AssembledTensorTest, MetadataMayDescribeOneRankOnly) {
  ShardedTensorMetadata metadata = {.size = {5, 5}};
  for (int r = 0; r < 4; ++r) {
    const int64_t rows = r == rank() ? 5 : 0;
    metadata.shards.push_back({{r > rank() ? 5 : 0, 0}, {rows, 5}, At(r)});
  }
  const Shard mine = Local({0, 0}, {5, 5}, {5, 5});
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::FromLocalShardsAndMetadata({mine}, metadata));
  EXPECT_TRUE(HasPattern(tensor));
  // A collective finds out that the ranks mean different tensors.
  EXPECT_THAT(tensor.Gather(),
              StatusIs(kInvalid, "a rank was called with other arguments"));
}

// No group, all shards here, with any strides.
SHERD_DIST_TEST_F(AssembledTensorTest, OneProcessMayHoldAllShards) {
  ShardedTensorMetadata metadata = {.size = {4, 6}};
  std::vector<Shard> shards;
  SHERD_ASSERT_OK_AND_ASSIGN(Tensor whole, Tensor::Empty({4, 6}));
  FillPattern(whole, {0, 0}, {4, 6});
  for (int r = 0; r < 3; ++r) {
    metadata.shards.push_back({{0, 2 * r}, {4, 2}, Placement::OnRank(7 * r)});
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor columns, whole.Narrow(1, 2 * r, 2));
    shards.push_back({columns, metadata.shards.back()});
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::WithoutGroup(shards, metadata));
  EXPECT_EQ(tensor.group(), nullptr);
  EXPECT_THAT(tensor.local_shards(), SizeIs(3));
  EXPECT_EQ(tensor.metadata().shards, metadata.shards);
  EXPECT_TRUE(HasPattern(tensor));
}

}  // namespace
}  // namespace sherd
