#include "gtest/gtest.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/rank_matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace {

using ::sherd::testing::AllRanksSucceeded;
using ::sherd::testing::IsOk;
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

}  // namespace
