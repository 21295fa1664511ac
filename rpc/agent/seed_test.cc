#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/remote_shards.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/rpc.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/sharded_matchers.h"
#include "sherd/testing/tensor_matchers.h"
#include "sherd/testing/tensor_pattern.h"

// The RPC part of PyTorch's tests of ShardedTensor, with four workers on every
// backend. The comment of a test has the name of theirs.

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::ShardedTensorEq;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kFailed = absl::StatusCode::kFailedPrecondition;

ShardedTensorOptions Published() { return {.init_rrefs = true}; }

class SeedTest : public sherd::testing::PlacedFixture<
                     sherd::testing::PersistentDistributedTest> {
 protected:
  // "worker1/cuda:1"
  Placement AtWorker(absl::string_view name, int rank) {
    return absl::StrCat(name, "/", DeviceOf(rank).ToString());
  }

  // Placements and devices of all shards are those of their owners, and shard i
  // is at its entry of `offsets`.
  void ExpectMetadata(const ShardedTensor& tensor,
                      const std::vector<int>& owners,
                      const std::vector<Dims>& offsets) {
    const std::vector<ShardMetadata>& shards = tensor.metadata().shards;
    ASSERT_THAT(shards, SizeIs(owners.size()));
    for (size_t i = 0; i < shards.size(); ++i) {
      EXPECT_EQ(*shards[i].placement, At(owners[i])) << i;
      EXPECT_EQ(shards[i].offsets, offsets[i]) << i;
    }
    for (const Shard& shard : tensor.local_shards()) {
      EXPECT_EQ(shard.tensor.device(), DeviceOf(rank()));
      EXPECT_EQ(shard.tensor.sizes(), shard.metadata.sizes);
    }
  }

  // This worker has the shards of all owners but itself: each the one that its
  // metadata describe, with the elements that its owner wrote.
  void ExpectRemoteShards(const ShardedTensor& tensor,
                          const std::vector<int>& owners) {
    FillPattern(tensor);
    ASSERT_THAT(group().Barrier(), IsOk());
    std::map<int, std::vector<ShardMetadata>> expected;
    for (size_t i = 0; i < owners.size(); ++i) {
      if (owners[i] == rank()) continue;
      expected[owners[i]].push_back(tensor.metadata().shards[i]);
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote,
                               tensor.remote_shards());
    ASSERT_EQ(remote.size(), expected.size());
    for (const auto& [owner, metadata] : expected) {
      ASSERT_TRUE(remote.contains(owner)) << owner;
      const std::vector<RemoteShard>& shards = remote.at(owner);
      ASSERT_THAT(shards, SizeIs(metadata.size())) << owner;
      for (size_t i = 0; i < shards.size(); ++i) {
        EXPECT_EQ(shards[i].owner().rank, owner);
        EXPECT_EQ(shards[i].owner().name, absl::StrCat("worker", owner));
        SHERD_ASSERT_OK_AND_ASSIGN(const Shard here, shards[i].ToHere());
        EXPECT_EQ(here.metadata, metadata[i]);
        EXPECT_EQ(here.tensor.sizes(), metadata[i].sizes);
        const bool on_host = metadata[i].placement->device().is_cpu();
        EXPECT_EQ(here.tensor.device(), on_host ? Device() : DeviceOf(rank()));
        EXPECT_TRUE(HasPattern(here.tensor, here.metadata.offsets,
                               tensor.metadata().size));
      }
    }
    // No worker changes or drops its shards meanwhile.
    ASSERT_THAT(group().Barrier(), IsOk());
  }
};

// init_rpc.
SHERD_DIST_TEST_F(SeedTest, WorkersAreNamedByTheirRanks,
                  WithComms{.init_rpc = true}) {
  EXPECT_EQ(remote_access().rank(), rank());
  EXPECT_THAT(remote_access().workers(),
              ElementsAre("worker0", "worker1", "worker2", "worker3"));
}

// assert_sharded_tensor_equal.
SHERD_DIST_TEST_F(SeedTest, EqualTensorsHaveAsManyRemoteShards,
                  WithComms{.init_rpc = true}) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::Rand(Chunks(0), {10, 20}, Published()));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor copy, tensor.Clone());
  EXPECT_THAT(copy, ShardedTensorEq(tensor));
  EXPECT_THAT(copy.remote_shards(), IsOkAndHolds(SizeIs(3)));
}

// TestShardedTensorChunked.test_sharded_tensor_metadata.
SHERD_DIST_TEST_F(SeedTest, PropertiesAreThoseRequested,
                  WithComms{.init_rpc = true}) {
  ShardedTensorOptions options = Published();
  const auto make = [&](const ShardingSpecPtr& spec) {
    return ShardedTensor::Empty(spec, {10, 20}, options).value();
  };
  const ShardedTensor plain = make(Chunks(0));
  EXPECT_THAT(plain.metadata().size, ElementsAre(10, 20));
  EXPECT_EQ(plain.dtype(), kFloat32);
  EXPECT_FALSE(plain.requires_grad());
  EXPECT_FALSE(plain.is_pinned());
  options.requires_grad = true;
  EXPECT_TRUE(make(Chunks(0)).requires_grad());
  options = {.dtype = kFloat64, .init_rrefs = true};
  EXPECT_EQ(make(Chunks(0)).dtype(), kFloat64);
  options = {.pin_memory = true, .init_rrefs = true};
  const auto in_host_memory =
      ChunkShardingSpec::Create(0, PlacementsOnRanks(4)).value();
  const ShardedTensor pinned = make(in_host_memory);
  EXPECT_TRUE(pinned.is_pinned());
  ExpectRemoteShards(pinned, {0, 1, 2, 3});
}

// test_complete_world_size.
SHERD_DIST_TEST_F(SeedTest, EveryWorkerReadsTheShardsOfTheOthers,
                  WithComms{.init_rpc = true}) {
  for (const int dim : {0, -2}) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Empty(Chunks(dim), {10, 20}, Published()));
    ASSERT_THAT(tensor.local_shards(), SizeIs(1));
    EXPECT_THAT(tensor.local_shards()[0].metadata.sizes,
                ElementsAre(rank() == 3 ? 1 : 3, 20));
    ExpectMetadata(tensor, {0, 1, 2, 3}, {{0, 0}, {3, 0}, {6, 0}, {9, 0}});
    ExpectRemoteShards(tensor, {0, 1, 2, 3});
  }
}

// test_shard_tensor_with_empty_shard, with init_rrefs.
SHERD_DIST_TEST_F(SeedTest, AnEmptyShardIsReadLikeAnyOther,
                  WithComms{.init_rpc = true}) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::Empty(Chunks(0), {9, 20}, Published()));
  EXPECT_THAT(tensor.metadata().shards[3].sizes, ElementsAre(0, 20));
  ExpectRemoteShards(tensor, {0, 1, 2, 3});
}

// Large enough for each path that tensors may take.
SHERD_DIST_TEST_F(SeedTest, LargeShardsAreReadToo,
                  WithComms{.init_rpc = true}) {
  for (const int dim : {0, 1}) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Empty(Chunks(dim), {512, 512}, Published()));
    ExpectRemoteShards(tensor, {0, 1, 2, 3});
  }
}

// test_partial_world_size.
SHERD_DIST_TEST_F(SeedTest, RanksWithoutShardsReadAndAreNotRead,
                  WithComms{.init_rpc = true}) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::Empty(Chunks(0, {2, 3}), {10, 20}, Published()));
  EXPECT_THAT(tensor.local_shards(), SizeIs(rank() >= 2 ? 1 : 0));
  ExpectMetadata(tensor, {2, 3}, {{0, 0}, {5, 0}});
  ExpectRemoteShards(tensor, {2, 3});
}

// test_new_group: rank 0 is outside of it.
SHERD_DIST_TEST_F(SeedTest, WorkersOutsideOfTheGroupReadItsShards,
                  WithComms{.init_rpc = true}) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto ranks, group().NewGroup({1, 2, 3}));
  EXPECT_EQ(ranks->is_member(), rank() != 0);
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::Empty(Chunks(0, {2, 3}), {10, 20},
                           {.group = ranks, .init_rrefs = true}));
  EXPECT_THAT(tensor.local_shards(), SizeIs(rank() >= 2 ? 1 : 0));
  ExpectMetadata(tensor, {2, 3}, {{0, 0}, {5, 0}});
  ExpectRemoteShards(tensor, {2, 3});
}

// test_multiple_local_shards.
SHERD_DIST_TEST_F(SeedTest, AllShardsOfAWorkerAreRead,
                  WithComms{.init_rpc = true}) {
  const std::vector<int> owners = {0, 1, 2, 3, 0, 1, 2, 3};
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::Empty(Chunks(0, owners), {16, 20}, Published()));
  EXPECT_THAT(tensor.local_shards(), SizeIs(2));
  std::vector<Dims> offsets;
  for (int64_t i = 0; i < 8; ++i) offsets.push_back({2 * i, 0});
  ExpectMetadata(tensor, owners, offsets);
  ExpectRemoteShards(tensor, owners);
}

// TestShardedTensorEnumerable.test_sharded_tensor_metadata.
SHERD_DIST_TEST_F(SeedTest, ShardsOfAGridAreRead, WithComms{.init_rpc = true}) {
  const std::vector<Dims> offsets = {{0, 0}, {0, 5}, {5, 0}, {5, 5}};
  std::vector<ShardMetadata> shards;
  for (int r = 0; r < 4; ++r) {
    shards.push_back(
        {.offsets = offsets[r], .sizes = {5, 5}, .placement = At(r)});
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const auto grid,
                             EnumerableShardingSpec::Create(shards));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::Empty(grid, {10, 10}, Published()));
  ExpectMetadata(tensor, {0, 1, 2, 3}, offsets);
  ExpectRemoteShards(tensor, {0, 1, 2, 3});
}

// test_sharded_tensor_sizes.
SHERD_DIST_TEST_F(SeedTest, SizesAreAskedForByDimension,
                  WithComms{.init_rpc = true}) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor line,
      ShardedTensor::Empty(Chunks(0), {10}, Published()));
  EXPECT_THAT(line.size(), ElementsAre(10));
  ExpectRemoteShards(line, {0, 1, 2, 3});
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::Empty(Chunks(0), {10, 20}, Published()));
  EXPECT_THAT(tensor.size(), ElementsAre(10, 20));
  EXPECT_EQ(tensor.dim(), 2);
  EXPECT_THAT(tensor.size(0), IsOkAndHolds(10));
  EXPECT_THAT(tensor.size(-1), IsOkAndHolds(20));
  for (const int dim : {-3, 2}) {
    EXPECT_THAT(tensor.size(dim), StatusIs(absl::StatusCode::kOutOfRange,
                                           "Dimension out of range"));
  }
}

// test_cleanup.
SHERD_DIST_TEST_F(SeedTest, PublicationsGoWithTheirTensors,
                  WithComms{.init_rpc = true}) {
  RemoteShards remote;
  {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Empty(Chunks(0), {10, 20}, Published()));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor unpublished,
                               ShardedTensor::Empty(Chunks(0), {10, 20}));
    SHERD_ASSERT_OK_AND_ASSIGN(remote, tensor.remote_shards());
  }
  ASSERT_THAT(group().Barrier(), IsOk());
  for (const auto& [owner, shards] : remote) {
    EXPECT_THAT(shards[0].ToHere(), StatusIs(absl::StatusCode::kNotFound,
                                             absl::StrCat("worker", owner)));
  }
  ASSERT_THAT(group().Barrier(), IsOk());
}

// ChunkShardingSpec with names of workers, and "Invalid worker name".
SHERD_DIST_TEST_F(SeedTest, PlacementsNameWorkers,
                  WithComms{.init_rpc = true}) {
  std::vector<Placement> placements;
  for (const int r : {1, 0, 3, 2}) {
    placements.push_back(AtWorker(absl::StrCat("worker", r), r));
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const auto spec,
                             ChunkShardingSpec::Create(0, placements));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::Empty(spec, {8, 20}, Published()));
  ASSERT_THAT(tensor.local_shards(), SizeIs(1));
  EXPECT_THAT(tensor.local_shards()[0].metadata.offsets,
              ElementsAre(2 * (rank() ^ 1), 0));
  ExpectRemoteShards(tensor, {1, 0, 3, 2});
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto foo, ChunkShardingSpec::Create(0, {AtWorker("workerfoo", 1)}));
  EXPECT_THAT(ShardedTensor::Empty(foo, {10, 20}, Published()),
              StatusIs(kInvalid, "Invalid worker name"));
}

// test_invalid_sharding.
SHERD_DIST_TEST_F(SeedTest, WithoutRpcTheErrorsSaySo) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto named, ChunkShardingSpec::Create(0, {AtWorker("worker0", 1)}));
  EXPECT_THAT(ShardedTensor::Empty(named, {10, 20}),
              StatusIs(kFailed, "RPC framework needs to be initialized"));
  EXPECT_THAT(ShardedTensor::Empty(Chunks(0, {0}), {10, 20}, Published()),
              StatusIs(kFailed, "RPC Framework needs to be initialized"));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor,
                             ShardedTensor::Empty(Chunks(0, {0}), {10, 20}));
  EXPECT_THAT(tensor.remote_shards(),
              StatusIs(kFailed, "ShardedTensor created with init_rrefs=False"));

  SHERD_ASSERT_OK_AND_ASSIGN(const auto agent, InitRpc({}));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto foo, ChunkShardingSpec::Create(0, {AtWorker("workerfoo", 1)}));
  EXPECT_THAT(ShardedTensor::Empty(foo, {10, 20}, Published()),
              StatusIs(kInvalid, "Invalid worker name"));
  EXPECT_THAT(agent->Shutdown(), IsOk());
}

// test_invalid_pg_rpc_ranks.
SHERD_DIST_TEST_F(SeedTest, AWorkerOfAnotherRankPublishesNothing) {
  const int other = (rank() + 1) % world_size();
  SHERD_ASSERT_OK_AND_ASSIGN(const auto agent,
                             InitRpc({.name = absl::StrCat("worker", other),
                                      .rank = other,
                                      .world_size = world_size()}));
  EXPECT_EQ(agent->rank(), other);
  EXPECT_THAT(ShardedTensor::Empty(Chunks(0, {1}), {10, 20}, Published()),
              StatusIs(kInvalid,
                       "Default ProcessGroup and RPC ranks must be the same"));
  EXPECT_THAT(agent->Shutdown(), IsOk());
}

// test_load_state_dict_errors: the group ends first.
SHERD_DIST_TEST_F(SeedTest, RpcOutlivesTheGroup, WithoutComms{}) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto agent, InitRpc({}));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto world, Init({}));
  const auto rows =
      ChunkShardingSpec::Create(0, PlacementsOnRanks(world_size())).value();
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardedTensor tensor,
      ShardedTensor::Full(rows, {8, 20}, 3, Published()));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto some, world->NewGroup({0, 2, 3}));
  EXPECT_THAT(world->Destroy(), IsOk());
  EXPECT_THAT(ShardedTensor::Empty(rows, {8, 20}, Published()),
              StatusIs(kFailed, "Default process group"));
  SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote, tensor.remote_shards());
  EXPECT_THAT(remote, SizeIs(3));
  for (const auto& [owner, shards] : remote) {
    SHERD_ASSERT_OK_AND_ASSIGN(const Shard here, shards[0].ToHere());
    EXPECT_THAT(here.tensor, TensorEq(Tensor::Full({2, 20}, 3)));
  }
  EXPECT_THAT(agent->Shutdown(), IsOk());
}

}  // namespace
}  // namespace sherd
