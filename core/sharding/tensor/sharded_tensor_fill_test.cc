#include "sherd/core/sharding/sharded_tensor_fill.h"

#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_init.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/tensor/shard_fill.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::Chunks;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TensorEq;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(FillLocalShardsTest, CallsForEachShardWithDataInTurn) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    const auto spec =
        ChunkShardingSpec::Create(
            0, {"rank:0/cpu", "rank:1/cpu", "rank:0/meta", "rank:0/cpu"})
            .value();
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Empty(spec, {8}));
    int calls = 0;
    EXPECT_THAT(FillLocalShards(
                    tensor, [&](Tensor& shard) { return shard.Fill(++calls); }),
                IsOk());
    EXPECT_EQ(calls, group.rank() == 0 ? 2 : 1);
    EXPECT_THAT(tensor.local_shards().back().tensor,
                TensorEq(Tensor::Full({2}, calls)));
    // Ends with the first error.
    int failed = 0;
    EXPECT_THAT(FillLocalShards(tensor,
                                [&](Tensor&) {
                                  ++failed;
                                  return absl::AbortedError("enough");
                                }),
                StatusIs(absl::StatusCode::kAborted, "enough"));
    EXPECT_EQ(failed, 1);
  });
}

TEST(FillRandomlyTest, AGlobalStreamMovesTheGeneratorOnEveryRank) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    const auto spec = ChunkShardingSpec::Create(
                          0, {"rank:0/cpu", "rank:0/cpu", "rank:1/meta"})
                          .value();
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Empty(spec, {6, 3}));
    Generator expected(9);
    SHERD_ASSERT_OK_AND_ASSIGN(Tensor whole, Tensor::Empty({6, 3}));
    ASSERT_THAT(FillUniform(whole, -2, 5, expected), IsOk());

    Generator generator(9);
    const RandomOptions options = {.stream = RandomStream::kGlobal,
                                   .generator = &generator};
    const auto uniform = [](Tensor& shard, Generator& generator,
                            const RandomRegion* region) {
      return FillUniform(shard, -2, 5, generator, region);
    };
    ASSERT_THAT(FillRandomly(tensor, options, uniform), IsOk());
    EXPECT_EQ(generator.GetState(), expected.GetState());
    for (const Shard& shard : tensor.local_shards()) {
      if (shard.tensor.device().is_meta()) continue;
      EXPECT_THAT(shard.tensor,
                  TensorBitwiseEq(whole.Narrow(shard.metadata.offsets,
                                               shard.metadata.sizes)));
    }
    // An error leaves it where it is.
    const auto fails = [](Tensor&, Generator&, const RandomRegion*) {
      return absl::AbortedError("enough");
    };
    const absl::Status status = FillRandomly(tensor, options, fails);
    if (group.rank() == 0) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted));
      EXPECT_EQ(generator.GetState(), expected.GetState());
    }
    ShardedTensor undefined;
    EXPECT_THAT(
        FillRandomly(undefined, options, uniform),
        StatusIs(absl::StatusCode::kFailedPrecondition, "was not created"));
  });
}

TEST(FillRandomlyTest, ReplicasAreDrawnByGlobalIndexOnly) {
  RunLocalRanks(2, [](ProcessGroup&) {
    const auto replicated =
        MeshShardingSpec::Create({{2}, PlacementsOnRanks(2)}, {}).value();
    EXPECT_THAT(ShardedTensor::Rand(replicated, {3, 2}, {},
                                    {.stream = RandomStream::kPerRank}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "rank:1/cpu) is a replica"));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                               ShardedTensor::Rand(replicated, {3, 2}));
    Generator same;
    EXPECT_THAT(tensor.local_tensor(),
                IsOkAndHolds(TensorBitwiseEq(Rand({3, 2}, {}, same))));
  });
}

TEST(FillRandomlyTest, ReplicasOfUnequalGeneratorsAreFoundByTheNextCollective) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    const auto replicated =
        MeshShardingSpec::Create({{3}, PlacementsOnRanks(3)}, {}).value();
    const auto rows =
        ChunkShardingSpec::Create(0, PlacementsOnRanks(3)).value();
    // Rank 1 has drawn something more.
    Generator generator(7);
    if (group.rank() == 1) generator.Take(1);
    const RandomOptions random = {.generator = &generator};
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor replicas,
        ShardedTensor::Randn(replicated, {3, 2}, {}, random));
    EXPECT_THAT(replicas.AllGather(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("rank 1"), HasSubstr("at position"))));
    // Without replicas there is nothing that could differ.
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor chunks,
                               ShardedTensor::Randn(rows, {3, 2}, {}, random));
    EXPECT_THAT(chunks.AllGather(), IsOk());
    // A tensor with other elements is another tensor.
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor zeros, ZerosLike(replicas));
    EXPECT_THAT(zeros.AllGather(), IsOk());
    Generator equal(7);
    ASSERT_THAT(InitUniform(replicas, 0, 1, {.generator = &equal}), IsOk());
    EXPECT_THAT(replicas.AllGather(), IsOk());
  });
}

}  // namespace
}  // namespace sherd
