#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/remote_shards.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/rpc.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

// Calls with tensors on the GPU of each rank, and shards there.

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;

struct Echo {
  static constexpr absl::string_view kName = "echo";
  using Signature =
      absl::StatusOr<std::pair<Tensor, std::string>>(const Tensor&);
};
// Returns the argument followed by as many fives.
struct Extend {
  static constexpr absl::string_view kName = "extend";
  using Signature = absl::StatusOr<Tensor>(const Tensor&);
};

absl::StatusOr<Tensor> ExtendHere(const Tensor& x) {
  const int64_t n = x.numel();
  SHERD_ASSIGN_OR_RETURN(Tensor longer,
                         Tensor::Full({2 * n}, 5, {.device = x.device()}));
  SHERD_RETURN_IF_ERROR(longer.Narrow(0, 0, n)->CopyFrom(x));
  return longer;
}

class DeviceCallsProcessTest : public sherd::testing::DistributedTest {
 protected:
  // With the maps that exchange each rank's GPU for the other's.
  absl::StatusOr<std::shared_ptr<RpcAgent>> Start() {
    RegisterHandler<Echo>(
        [](const Tensor& x) -> absl::StatusOr<std::pair<Tensor, std::string>> {
          return std::make_pair(x, x.device().ToString());
        });
    RegisterHandler<Extend>(ExtendHere);
    RpcOptions options = {.rank = rank(),
                          .world_size = world_size(),
                          .init_method = init_method()};
    for (int r = 0; r < world_size(); ++r) {
      SHERD_RETURN_IF_ERROR(
          AddDeviceMap(options.device_maps, absl::StrCat("worker", r),
                       {{Gpu(r), Gpu(rank())}, {Gpu(rank()), Gpu(r)}}));
    }
    return InitRpc(options);
  }

  static Device Gpu(int rank) { return {DeviceType::kCuda, rank}; }
};

SHERD_DIST_TEST_F(DeviceCallsProcessTest, TensorsGoFromGpuToGpu) {
  const auto agent = Start();
  ASSERT_THAT(agent, IsOk());
  const int other = 1 - rank();
  DeviceRuntime& runtime = *DeviceRuntime::For(DeviceType::kCuda).value();
  const DeviceStream stream = runtime.CreateStream(rank()).value();
  for (const int64_t count : {1, 1000, 1 << 20}) {
    const ScopedStream scope(stream);
    Tensor x = *Tensor::Full({count}, rank(), {.device = Gpu(rank())});
    const auto back = (*agent)->Call<Echo>(other, x);
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(back->second, Gpu(other).ToString());
    EXPECT_EQ(back->first.device(), Gpu(rank()));
    EXPECT_THAT(back->first, TensorEq(x));
    // The argument is the caller's again.
    ASSERT_THAT(x.Fill(3), IsOk());
    const Tensor out = *Tensor::Zeros({2 * count}, {.device = Gpu(rank())});
    ASSERT_THAT(runtime.Synchronize(stream), IsOk());
    ASSERT_THAT((*agent)->Call<Extend>(To{.worker = other, .out = {out}}, x),
                IsOk());
    EXPECT_THAT(*out.Narrow(0, 0, count), TensorEq(x));
    EXPECT_THAT(*out.Narrow(0, count, count),
                TensorEq(Tensor::Full({count}, 5, {.device = Gpu(rank())})));
  }
  runtime.DestroyStream(stream);
  EXPECT_THAT((*agent)->Shutdown(), IsOk());
}

SHERD_DIST_TEST_F(DeviceCallsProcessTest, RemoteShardsArriveOnTheReadersGpu) {
  const auto agent = Start();
  ASSERT_THAT(agent, IsOk());
  const auto rows = ChunkShardingSpec::Create(0, {Placement::OnRank(0, Gpu(0)),
                                                  Placement::OnRank(1, Gpu(1))})
                        .value();
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::Full(rows, {4, 500}, 2.5, {.init_rrefs = true}));
  SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote, tensor.remote_shards());
  const RemoteShard& shard = remote.at(1 - rank())[0];
  SHERD_ASSERT_OK_AND_ASSIGN(const Shard whole, shard.ToHere());
  EXPECT_EQ(whole.tensor.device(), Gpu(rank()));
  EXPECT_THAT(whole.tensor,
              TensorEq(Tensor::Full({2, 500}, 2.5, {.device = Gpu(rank())})));
  for (const Device& device : {Gpu(rank()), Device()}) {
    const Tensor out = *Tensor::Zeros({2, 7}, {.device = device});
    ASSERT_THAT(group().Barrier(), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Shard box,
        shard.ToHere({.box = Box{{0, 400}, {2, 7}}, .out = out}));
    EXPECT_EQ(box.tensor.data(), out.data());
    EXPECT_THAT(out, TensorEq(Tensor::Full({2, 7}, 2.5, {.device = device})));
  }
  ASSERT_THAT(group().Barrier(), IsOk());
  EXPECT_THAT((*agent)->Shutdown(), IsOk());
}

}  // namespace
}  // namespace sherd
