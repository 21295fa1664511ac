#include <cstdint>

#include "gtest/gtest.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/sharded_comparison.h"
#include "sherd/core/sharding/sharded_ops.h"
#include "sherd/core/sharding/sharded_statistics.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/rank_matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace {

using ::sherd::testing::AllRanksSucceeded;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::TensorBitwiseEq;
using ::sherd::testing::TensorEq;

class MeshTest : public sherd::testing::DistributedTest {
 protected:
  // Rows over the first dimension of a mesh of two by two, copies along the
  // second.
  sherd::ShardingSpecPtr RowsTwice() {
    const sherd::DeviceMesh mesh = {.shape = {2, 2},
                                    .placements = sherd::PlacementsOnRanks(4)};
    return sherd::MeshShardingSpec::FromPlacements(
               mesh, {sherd::MeshPlacement::Shard(0),
                      sherd::MeshPlacement::Replicate()})
        .value();
  }
  sherd::ShardingSpecPtr Quarters() {
    return sherd::MeshShardingSpec::Grid({2, 2}, sherd::PlacementsOnRanks(4))
        .value();
  }
};

SHERD_DIST_TEST_F(MeshTest, TheSameNumbersInEveryLayout) {
  sherd::ManualSeed(17);
  auto rows = sherd::ShardedTensor::Rand(RowsTwice(), {10, 7});
  ASSERT_THAT(rows, AllRanksSucceeded(group()));
  sherd::ManualSeed(17);
  auto quarters = sherd::ShardedTensor::Rand(Quarters(), {10, 7});
  ASSERT_THAT(quarters, AllRanksSucceeded(group()));

  ASSERT_THAT(rows->Reshard(Quarters()), AllRanksSucceeded(group()));
  EXPECT_THAT(Equal(*rows, *quarters), IsOkAndHolds(true));

  const auto whole = rows->AllGather();
  ASSERT_THAT(whole, AllRanksSucceeded(group()));
  const auto box = rows->Narrow({4, 2}, {3, 5});
  ASSERT_THAT(box, AllRanksSucceeded(group()));
  const auto gathered = box->Gather(3);
  ASSERT_THAT(gathered, AllRanksSucceeded(group()));
  if (rank() == 3) {
    EXPECT_THAT(*gathered, TensorBitwiseEq(whole->Narrow({4, 2}, {3, 5})));
  }
}

SHERD_DIST_TEST_F(MeshTest, OperationsCountReplicasOnce) {
  const auto ones = sherd::ShardedTensor::Ones(RowsTwice(), {10, 7});
  ASSERT_THAT(ones, AllRanksSucceeded(group()));
  const auto three = Apply(sherd::BinaryOp::kMul, *ones, 3);
  ASSERT_THAT(three, AllRanksSucceeded(group()));
  EXPECT_THAT(Equal(*three, *FullLike(*ones, 3)), IsOkAndHolds(true));
  EXPECT_THAT(Sum(*three),
              IsOkAndHolds(TensorEq(sherd::Tensor::Scalar<double>(210))));
}

SHERD_DIST_TEST_F(MeshTest, SummandsBecomeShards) {
  const auto mine = sherd::Tensor::Full({10, 7}, rank() + 1);
  ASSERT_THAT(mine, AllRanksSucceeded(group()));
  const auto partial = sherd::PartialTensor::Create(*mine);
  ASSERT_THAT(partial, AllRanksSucceeded(group()));
  const auto sum = partial->Reshard(Quarters());
  ASSERT_THAT(sum, AllRanksSucceeded(group()));
  EXPECT_THAT(
      sum->local_shards()[0].tensor,
      TensorEq(sherd::Tensor::Full(sum->local_shards()[0].metadata.sizes, 10)));
}

}  // namespace
