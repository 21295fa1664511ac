#include <random>

#include "gtest/gtest.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/rank_matchers.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace {

using ::sherd::testing::AllRanksSucceeded;
using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::RandomSize;
using ::sherd::testing::RandomSpec;
using ::sherd::testing::TensorBitwiseEq;

class ReshardTest : public sherd::testing::DistributedTest {};

SHERD_DIST_TEST_F(ReshardTest, RowsToColumnsAndBack) {
  const auto rows = sherd::ChunkShardingSpec::Create(
      0, sherd::PlacementsOnRanks(world_size()));
  const auto columns = sherd::ChunkShardingSpec::Create(
      1, sherd::PlacementsOnRanks(world_size()));
  ASSERT_THAT(rows, IsOk());
  ASSERT_THAT(columns, IsOk());

  // Uneven on purpose: 10 rows and 7 columns on four ranks.
  auto tensor = sherd::ShardedTensor::Rand(*rows, {10, 7});
  ASSERT_THAT(tensor, IsOk());
  const auto before = tensor->Gather(0);
  ASSERT_THAT(before, IsOk());

  ASSERT_THAT(tensor->Reshard(*columns), AllRanksSucceeded(group()));
  EXPECT_EQ(tensor->local_shards()[0].tensor.sizes()[0], 10);
  const auto after = tensor->Gather(0);
  ASSERT_THAT(after, IsOk());
  if (rank() == 0) {
    EXPECT_THAT(*after, TensorBitwiseEq(before));
  }
}

class ReorderTest
    : public sherd::testing::PlacedFixture<sherd::testing::DistributedTest> {};

SHERD_DIST_TEST_F(ReorderTest, AnyChunksBecomeAnyOthers) {
  const auto specs = ChunkSpecs({0, 1, 1}, /*seed=*/5);
  auto tensor = sherd::ShardedTensor::Empty(specs[0], {13, 21});
  ASSERT_THAT(tensor, IsOk());
  FillPattern(*tensor);
  for (const auto& spec : specs) {
    ASSERT_THAT(tensor->Reshard(spec), AllRanksSucceeded(group()));
    EXPECT_TRUE(HasPattern(*tensor)) << spec->ToString();
  }
}

SHERD_DIST_TEST_F(ReorderTest, AnyLayoutBecomesAnyOther) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20; ++i) {
    const sherd::Dims size = RandomSize(3, 400, random);
    auto tensor = sherd::ShardedTensor::Empty(
        RandomSpec(size, world_size(), random), size);
    ASSERT_THAT(tensor, IsOk());
    FillPattern(*tensor);
    const auto target = RandomSpec(size, world_size(), random);
    ASSERT_THAT(tensor->Reshard(target), AllRanksSucceeded(group()));
    EXPECT_TRUE(HasPattern(*tensor)) << target->ToString();
  }
}

}  // namespace
