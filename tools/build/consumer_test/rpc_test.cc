// The tests of RPC: what @sherd//testing:README.md shows, and an agent and
// remote shards of a body's own.

#include "sherd/rpc/rpc.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/remote_shards.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

using namespace sherd::testing;  // IsOk, TensorEq, …

struct Scale {
  static constexpr absl::string_view kName = "scale";
  using Signature = absl::StatusOr<sherd::Tensor>(const sherd::Tensor&, double);
};

class RpcTest : public DistributedTest {
 protected:
  void SetUp() override {
    sherd::RegisterHandler<Scale>(
        [](const sherd::Tensor& x,
           double factor) -> absl::StatusOr<sherd::Tensor> {
          std::vector<float> values(x.data_as<float>(),
                                    x.data_as<float>() + x.numel());
          for (float& value : values) value *= static_cast<float>(factor);
          return sherd::Tensor::FromSpan<float>(values, x.sizes());
        });
  }
};

SHERD_DIST_TEST_F(RpcTest, AnotherWorkerScales, WithComms{.init_rpc = true}) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto agent, sherd::DefaultRpcAgent());
  const int next = (rank() + 1) % world_size();
  EXPECT_THAT(agent->Call<Scale>(next, sherd::Tensor::Ones({3}).value(), 2.5),
              IsOkAndHolds(TensorEq(sherd::Tensor::Full({3}, 2.5))));
}

SHERD_DIST_TEST_F(RpcTest, WithAnAgentOfItsOwn, WithoutComms{}) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto agent, sherd::InitRpc({}));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto group, sherd::Init({}));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto rows,
                             sherd::ChunkShardingSpec::Create(
                                 0, sherd::PlacementsOnRanks(world_size())));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto ones,
      sherd::ShardedTensor::Ones(rows, {10, 7}, {.init_rrefs = true}));
  SHERD_ASSERT_OK_AND_ASSIGN(const sherd::RemoteShards remote,
                             ones.remote_shards());
  EXPECT_EQ(static_cast<int>(remote.size()), world_size() - 1);
  for (const auto& [owner, shards] : remote) {
    SHERD_ASSERT_OK_AND_ASSIGN(const sherd::Shard shard, shards[0].ToHere());
    EXPECT_THAT(shard.tensor,
                TensorEq(sherd::Tensor::Ones(shard.metadata.sizes)));
  }
  EXPECT_THAT(agent->Shutdown(), IsOk());
  EXPECT_THAT(group->Destroy(), IsOk());
}
