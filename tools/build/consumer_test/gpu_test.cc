// With nccl it runs where there are GPUs, and otherwise reports what is
// missing; with nccl_emulated it runs everywhere.

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

class GpuTest : public sherd::testing::DistributedTest {};

SHERD_DIST_TEST_F(GpuTest, RowsToColumnsOnDevices) {
  const sherd::Device cuda = "cuda";
  const auto rows = sherd::ChunkShardingSpec::Create(
      0, sherd::PlacementsOnRanks(world_size(), cuda));
  const auto columns = sherd::ChunkShardingSpec::Create(
      1, sherd::PlacementsOnRanks(world_size(), cuda));
  ASSERT_THAT(rows, IsOk());
  ASSERT_THAT(columns, IsOk());

  auto tensor = sherd::ShardedTensor::Rand(*rows, {10, 7});
  ASSERT_THAT(tensor, AllRanksSucceeded(group()));
  const auto before = tensor->Gather(0);
  ASSERT_THAT(before, AllRanksSucceeded(group()));
  ASSERT_THAT(tensor->Reshard(*columns), AllRanksSucceeded(group()));
  const auto after = tensor->Gather(0);
  ASSERT_THAT(after, AllRanksSucceeded(group()));

  const sherd::Tensor& shard = tensor->local_shards()[0].tensor;
  EXPECT_EQ(shard.device().type, sherd::DeviceType::kCuda);
  EXPECT_EQ(shard.sizes()[0], 10);
  if (rank() == 0) {
    const auto expected = before->To(sherd::Device());
    const auto gathered = after->To(sherd::Device());
    ASSERT_THAT(expected, IsOk());
    EXPECT_THAT(gathered, IsOk());
    EXPECT_THAT(*gathered, TensorBitwiseEq(*expected));
  }
}

}  // namespace
