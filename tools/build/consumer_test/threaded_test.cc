// Ranks that are threads of the test program.

#include "sherd/testing/threaded_test.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "sherd/core/nn/module_state.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/sharded_matchers.h"
#include "sherd/testing/sharded_model.h"

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::ShardedModel;
using ::sherd::testing::ShardedTensorEq;

class PlanTest : public sherd::testing::ThreadedDistributedTest {};

SHERD_DIST_TEST_F(PlanTest, RowsToColumnsAndBack) {
  const auto ranks = sherd::PlacementsOnRanks(world_size());
  SHERD_ASSERT_OK_AND_ASSIGN(const auto rows,
                             sherd::ChunkShardingSpec::Create(0, ranks));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto columns,
                             sherd::ChunkShardingSpec::Create(1, ranks));
  auto tensor = sherd::ShardedTensor::Ones(rows, {10, 7});
  ASSERT_THAT(tensor, IsOk());

  ASSERT_THAT(tensor->Reshard(columns), IsOk());
  ASSERT_THAT(tensor->Reshard(rows), IsOk());
  EXPECT_THAT(*tensor,
              ShardedTensorEq(sherd::ShardedTensor::Ones(rows, {10, 7})));
}

SHERD_DIST_TEST_F(PlanTest, AModelLoadsTheStateOfAnother) {
  const auto ranks = sherd::PlacementsOnRanks(world_size());
  SHERD_ASSERT_OK_AND_ASSIGN(const auto rows,
                             sherd::ChunkShardingSpec::Create(0, ranks));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto saved, ShardedModel::Create(rows));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto loaded, ShardedModel::Create(rows));
  sherd::AddShardedAttributeHooks(*saved);
  sherd::AddShardedAttributeHooks(*loaded);
  SHERD_ASSERT_OK_AND_ASSIGN(const auto state, sherd::State(*saved));
  ASSERT_THAT(sherd::LoadState(*loaded, state), IsOk());

  const auto both = [&](const std::string& name) {
    return std::pair(*sherd::Get(*loaded, name), *sherd::Get(*saved, name));
  };
  const auto [sharded, expected] = both("submodule.sharded_tensor2");
  EXPECT_THAT(*sharded.get_if<sherd::ShardedTensor>(),
              ShardedTensorEq(*expected.get_if<sherd::ShardedTensor>()));
  const auto [weight, same] = both("submodule.random_tensor2");
  EXPECT_TRUE(
      weight.get_if<sherd::Tensor>()->Equal(*same.get_if<sherd::Tensor>()));
}

SHERD_DIST_TEST_F(PlanTest, AllRanksAreInOneProcess) {
  const std::string process = std::to_string(getpid());
  ASSERT_THAT(store().Set("process of " + std::to_string(rank()), process),
              IsOk());
  const int next = (rank() + 1) % world_size();
  EXPECT_THAT(store().Get("process of " + std::to_string(next),
                          sherd::Deadline::After(absl::Seconds(30))),
              IsOkAndHolds(process));
}
