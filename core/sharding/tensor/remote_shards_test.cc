#include "sherd/core/sharding/remote_shards.h"

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/comm/store/store_remote_access.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::Chunks;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::sherd::testing::TensorEq;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Key;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kFailed = absl::StatusCode::kFailedPrecondition;

class RemoteShardsTest : public ::testing::Test {
 protected:
  RemoteShardsTest() { RegisterRemoteAccess(StartStoreRemoteAccess); }
  ~RemoteShardsTest() override { RegisterRemoteAccess(nullptr); }

  // `store`: of one more session; its workers share it.
  std::shared_ptr<RemoteAccess> Start(int rank, int size,
                                      std::shared_ptr<Store> store = nullptr) {
    auto access = StartRemoteAccess({.rank = rank,
                                     .world_size = size,
                                     .store = store == nullptr ? store_ : store,
                                     .timeout = absl::Seconds(60),
                                     .workers_are_threads = true});
    EXPECT_THAT(access, IsOk());
    return access.ok() ? *access : nullptr;
  }

  // On ranks that are workers of remote access, by the same number.
  void RunWorkers(int n, const std::function<void(ProcessGroup&)>& body) {
    RunLocalRanks(n, [&](ProcessGroup& group) {
      const std::shared_ptr<RemoteAccess> access = Start(group.rank(), n);
      ASSERT_NE(access, nullptr);
      body(group);
      EXPECT_THAT(access->Shutdown(), IsOk());
    });
  }

  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

// Seed 001, _init_sharded_tensor and test_create_sharded_tensor_with_full: what
// is read at once has its value already.
TEST_F(RemoteShardsTest, AreThoseOfAllOtherRanksWithTheirElements) {
  RunWorkers(4, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Full(Chunks(0, 4), {10, 20}, group.size(),
                            {.dtype = kInt32, .init_rrefs = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote,
                               tensor.remote_shards());
    EXPECT_THAT(remote, SizeIs(3));
    EXPECT_EQ(remote.count(group.rank()), 0);
    for (const auto& [rank, shards] : remote) {
      ASSERT_THAT(shards, SizeIs(1));
      EXPECT_EQ(shards[0].owner().rank, rank);
      EXPECT_EQ(shards[0].owner().name, "worker" + std::to_string(rank));
      EXPECT_EQ(shards[0].metadata(), tensor.metadata().shards[rank]);
      SHERD_ASSERT_OK_AND_ASSIGN(const Shard shard, shards[0].ToHere());
      EXPECT_EQ(shard.metadata, shards[0].metadata());
      EXPECT_THAT(shard.tensor, TensorEq(Tensor::Full({rank == 3 ? 1 : 3, 20},
                                                      4, {.dtype = kInt32})));
    }
    ASSERT_THAT(group.Barrier(), IsOk());
  });
}

TEST_F(RemoteShardsTest, AreReadInPartIntoMemoryOfTheCaller) {
  RunWorkers(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Rand(Chunks(1, 2), {4, 6}, {.init_rrefs = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote,
                               tensor.remote_shards());
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.AllGather());
    const int other = 1 - group.rank();
    const RemoteShard& shard = remote.at(other)[0];
    const Tensor out = *Tensor::Zeros({2, 1}, {});
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Shard box,
        shard.ToHere({.box = Box{{1, 2}, {2, 1}}, .out = out}));
    EXPECT_EQ(box.tensor.data(), out.data());
    EXPECT_THAT(box.metadata.offsets, ElementsAre(1, other * 3 + 2));
    EXPECT_THAT(box.metadata.sizes, ElementsAre(2, 1));
    EXPECT_EQ(box.metadata.placement, shard.metadata().placement);
    EXPECT_THAT(
        out, TensorEq(whole.Narrow(box.metadata.offsets, box.metadata.sizes)));
    EXPECT_THAT(shard.ToHere({.box = Box{{1, 2}, {2, 2}}}),
                StatusIs(kInvalid, "a box at "));
    EXPECT_THAT(shard.ToHere({.out = out}), StatusIs(kInvalid, "`out`"));
    ASSERT_THAT(group.Barrier(), IsOk());
  });
}

// Seed 001, test_new_group.
TEST_F(RemoteShardsTest, AreThereForWorkersOutsideTheGroup) {
  RunWorkers(4, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, all.NewGroup({1, 2, 3}));
    const auto spec =
        ChunkShardingSpec::Create(0, {"rank:2", "rank:3", "rank:2"}).value();
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Full(spec, {6, 20}, 1.5,
                            {.group = group, .init_rrefs = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote,
                               tensor.remote_shards());
    if (all.rank() == 2) {
      EXPECT_THAT(remote, ElementsAre(Key(3)));
    } else if (all.rank() == 3) {
      EXPECT_THAT(remote, ElementsAre(Key(2)));
    } else {
      EXPECT_THAT(remote, ElementsAre(Key(2), Key(3)));
    }
    for (const auto& [rank, shards] : remote) {
      EXPECT_THAT(shards, SizeIs(rank == 2 ? 2 : 1));
      for (const RemoteShard& shard : shards) {
        EXPECT_EQ(shard.owner().rank, rank);
        EXPECT_EQ(shard.metadata().placement->rank(), rank);
        SHERD_ASSERT_OK_AND_ASSIGN(const Shard here, shard.ToHere());
        EXPECT_THAT(here.tensor, TensorEq(Tensor::Full({2, 20}, 1.5, {})));
      }
    }
    ASSERT_THAT(all.Barrier(), IsOk());
  });
}

TEST_F(RemoteShardsTest, MovesAndCopiesArePublishedAnew) {
  RunWorkers(2, [](ProcessGroup& group) {
    const int other = 1 - group.rank();
    const auto first = [other](const ShardedTensor& tensor) {
      return tensor.remote_shards().value().at(other)[0];
    };
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Rand(Chunks(0, 2), {4, 6}, {.init_rrefs = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, tensor.AllGather());
    const auto holds = [&](const ShardedTensor& t, const Tensor& values) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Shard shard, first(t).ToHere());
      EXPECT_THAT(shard.tensor, TensorEq(values.Narrow(shard.metadata.offsets,
                                                       shard.metadata.sizes)));
    };
    holds(tensor, whole);
    const RemoteShard rows = first(tensor);
    ASSERT_THAT(tensor.Reshard(Chunks(1, 2)), IsOk());
    EXPECT_THAT(first(tensor).metadata().sizes, ElementsAre(4, 3));
    holds(tensor, whole);
    // The old shards went with the last handle of theirs.
    ASSERT_THAT(group.Barrier(), IsOk());
    EXPECT_THAT(rows.ToHere(),
                StatusIs(absl::StatusCode::kNotFound, "withdrawn"));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor back,
                               tensor.Resharded(Chunks(0, 2)));
    holds(back, whole);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor copy, tensor.Clone());
    holds(copy, whole);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor wide, tensor.To(kFloat64));
    holds(wide, *whole.To(kFloat64));
    // Nothing changed, nothing is published: readers keep what they have.
    const RemoteShard columns = first(tensor);
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor same, tensor.To(kFloat32));
    ASSERT_THAT(tensor.Reshard(Chunks(1, 2)), IsOk());
    ASSERT_THAT(group.Barrier(), IsOk());
    EXPECT_THAT(columns.ToHere(), IsOk());
    holds(same, whole);
    holds(tensor, whole);
    ASSERT_THAT(group.Barrier(), IsOk());

    constexpr char kNone[] = "ShardedTensor created with init_rrefs=False";
    EXPECT_THAT(ZerosLike(tensor).value().remote_shards(),
                StatusIs(kFailed, kNone));
    EXPECT_THAT(tensor.Narrow(1, 0, 3).value().remote_shards(),
                StatusIs(kFailed, kNone));
    ASSERT_THAT(group.Barrier(), IsOk());
  });
}

// A worker outside the group counts its tensors, and not what members make of
// them.
TEST_F(RemoteShardsTest, WhatMembersMoveDoesNotCountForWorkersOutside) {
  RunWorkers(3, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, all.NewGroup({1, 2}));
    const auto spec =
        ChunkShardingSpec::Create(0, {"rank:1", "rank:2"}).value();
    const auto full = [&](double value) {
      return ShardedTensor::Full(spec, {4, 2}, value,
                                 {.group = group, .init_rrefs = true});
    };
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor first, full(1));
    std::vector<ShardedTensor> made;
    if (group->is_member()) {
      SHERD_ASSERT_OK_AND_ASSIGN(made.emplace_back(), first.Clone());
      SHERD_ASSERT_OK_AND_ASSIGN(made.emplace_back(), first.To(kFloat64));
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor second, full(2));
    for (const auto& [tensor, value] :
         {std::pair(&first, 1.0), std::pair(&second, 2.0)}) {
      const RemoteShards remote = tensor->remote_shards().value();
      for (const auto& [rank, shards] : remote) {
        SHERD_ASSERT_OK_AND_ASSIGN(const Shard shard, shards[0].ToHere());
        EXPECT_THAT(shard.tensor, TensorEq(Tensor::Full({2, 2}, value, {})));
      }
    }
    ASSERT_THAT(all.Barrier(), IsOk());
  });
}

TEST_F(RemoteShardsTest, AnotherTensorThanTheOwnersIsAnError) {
  RunWorkers(3, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, all.NewGroup({1, 2}));
    const auto create = [&](absl::Span<const int64_t> size, DType dtype,
                            const char* a, const char* b) {
      return ShardedTensor::Empty(
                 ChunkShardingSpec::Create(0, {a, b}).value(), size,
                 {.dtype = dtype, .group = group, .init_rrefs = true})
          .value();
    };
    const bool member = group->is_member();
    // Worker 0 creates another one each time.
    const std::vector<ShardedTensor> tensors = {
        create({4, 2}, member ? kFloat32 : kInt32, "rank:1", "rank:2"),
        create({4, member ? 2 : 3}, kInt32, "rank:1", "rank:2"),
        member ? create({4, 2}, kInt32, "rank:1", "rank:2")
               : create({4, 2}, kInt32, "rank:2", "rank:1")};
    if (!member) {
      for (const ShardedTensor& tensor : tensors) {
        const RemoteShards remote = tensor.remote_shards().value();
        for (const auto& [rank, shards] : remote) {
          EXPECT_THAT(shards[0].ToHere(),
                      StatusIs(kFailed, "is another tensor on its owner"));
        }
      }
    }
    ASSERT_THAT(all.Barrier(), IsOk());
  });
}

// The ranks that made the result agree; those that only the new group has are
// not asked.
TEST_F(RemoteShardsTest, ATensorMovesToALargerGroup) {
  RunWorkers(3, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, all.NewGroup({1, 2}));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto larger, all.NewGroup({0, 1, 2}));
    if (!group->is_member()) {
      ASSERT_THAT(all.Barrier(), IsOk());
      return;
    }
    const auto spec =
        ChunkShardingSpec::Create(0, {"rank:1", "rank:2"}).value();
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Full(spec, {4}, 3,
                            {.group = group, .init_rrefs = true}));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor moved, tensor.To(larger));
    SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote,
                               moved.remote_shards());
    const int other = 3 - all.rank();
    EXPECT_THAT(remote, ElementsAre(Key(other)));
    SHERD_ASSERT_OK_AND_ASSIGN(const Shard shard, remote.at(other)[0].ToHere());
    EXPECT_THAT(shard.tensor, TensorEq(Tensor::Full({2}, 3, {})));
    ASSERT_THAT(all.Barrier(), IsOk());
  });
}

TEST_F(RemoteShardsTest, RpcMayEndBeforeTheTensorAndBeginAgain) {
  RunLocalRanks(2, [this](ProcessGroup& group) {
    std::shared_ptr<RemoteAccess> access = Start(group.rank(), 2);
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Ones(Chunks(0, 2), {4, 2}, {.init_rrefs = true}));
    const RemoteShard shard =
        tensor.remote_shards().value().at(1 - group.rank())[0];
    ASSERT_THAT(access->Shutdown(), IsOk());
    EXPECT_THAT(shard.ToHere(), StatusIs(kFailed, "shut down"));
    EXPECT_THAT(tensor.Clone(),
                StatusIs(kFailed, "RPC Framework needs to be initialized"));
    EXPECT_THAT(tensor.Reshard(Chunks(1, 2)),
                StatusIs(kFailed, "RPC Framework needs to be initialized"));
    EXPECT_EQ(*tensor.spec(), *Chunks(0, 2));
    // There is no other reference to it.
    access.reset();
    EXPECT_THAT(shard.ToHere(), StatusIs(kFailed, "shut down"));
    EXPECT_THAT(tensor.remote_shards(), StatusIs(kFailed, "shut down"));

    access =
        Start(group.rank(), 2, std::make_shared<PrefixStore>("again", store_));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor copy, tensor.Clone());
    EXPECT_THAT(copy.remote_shards().value().at(1 - group.rank())[0].ToHere(),
                IsOk());
    EXPECT_THAT(access->Shutdown(), IsOk());
  });
}

TEST_F(RemoteShardsTest, TheGroupMayEndBeforeTheTensor) {
  RunWorkers(2, [](ProcessGroup& all) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto group, all.NewGroup({0, 1}));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Full(Chunks(0, 2), {4}, 5,
                            {.group = group, .init_rrefs = true}));
    ASSERT_THAT(group->Destroy(), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote,
                               tensor.remote_shards());
    SHERD_ASSERT_OK_AND_ASSIGN(const Shard shard,
                               remote.at(1 - all.rank())[0].ToHere());
    EXPECT_THAT(shard.tensor, TensorEq(Tensor::Full({2}, 5, {})));
    ASSERT_THAT(all.Barrier(), IsOk());
  });
}

TEST_F(RemoteShardsTest, AnOwnerThatHasEndedIsNamed) {
  RunLocalRanks(2, [this](ProcessGroup& group) {
    const std::shared_ptr<RemoteAccess> access = Start(group.rank(), 2);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Ones(Chunks(0, 2), {4}, {.init_rrefs = true}));
    if (group.rank() == 1) {
      ASSERT_THAT(access->Shutdown({.graceful = false}), IsOk());
    }
    ASSERT_THAT(group.Barrier(), IsOk());
    if (group.rank() == 0) {
      const absl::Status status =
          tensor.remote_shards().value().at(1)[0].ToHere().status();
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, "worker1"));
      EXPECT_EQ(FailedRank(status), 1);
      EXPECT_THAT(access->Shutdown({.timeout = absl::Milliseconds(1)}),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, "done/1"));
    }
  });
}

TEST_F(RemoteShardsTest, TensorsWithoutDataAreAnError) {
  RunWorkers(2, [](ProcessGroup& group) {
    const auto meta =
        ChunkShardingSpec::Create(0, {"rank:0/meta", "rank:1/meta"}).value();
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor tensor,
        ShardedTensor::Empty(meta, {4}, {.init_rrefs = true}));
    EXPECT_THAT(tensor.remote_shards().value().at(1 - group.rank())[0].ToHere(),
                StatusIs(kFailed, "is on the meta device and has no data"));
    ASSERT_THAT(group.Barrier(), IsOk());
    EXPECT_THAT(ShardedTensor().remote_shards(), StatusIs(kFailed));
  });
}

TEST_F(RemoteShardsTest, HandlesOfOneTensorShareThem) {
  RunWorkers(2, [](ProcessGroup& group) {
    const int other = 1 - group.rank();
    SHERD_ASSERT_OK_AND_ASSIGN(
        std::optional<ShardedTensor> tensor,
        ShardedTensor::Ones(Chunks(0, 2), {2, 2}, {.init_rrefs = true}));
    ShardedTensor handle = *tensor;
    handle.SetRequiresGrad(true);
    const RemoteShard shard = tensor->remote_shards().value().at(other)[0];
    tensor.reset();
    ASSERT_THAT(group.Barrier(), IsOk());
    EXPECT_THAT(shard.ToHere(), IsOk());
    ASSERT_THAT(group.Barrier(), IsOk());
    handle = ShardedTensor();
    ASSERT_THAT(group.Barrier(), IsOk());
    EXPECT_THAT(shard.ToHere(), StatusIs(absl::StatusCode::kNotFound));
    ASSERT_THAT(group.Barrier(), IsOk());
  });
}

TEST_F(RemoteShardsTest, EveryFactoryOfATensorPublishesIt) {
  RunWorkers(2, [](ProcessGroup& group) {
    const int rank = group.rank();
    const ShardedTensorOptions options = {.init_rrefs = true};
    const auto value = [](int r) { return *Tensor::Full({1, 3}, r + 1, {}); };
    const auto shard = [&](int r) {
      return *Shard::FromTensorAndOffsets(value(r), {r, 0}, r);
    };
    SHERD_ASSERT_OK_AND_ASSIGN(
        const ShardedTensor assembled,
        ShardedTensor::FromLocalShards({shard(rank)}, {2, 3}, options));
    std::vector<ShardedTensor> tensors = {assembled};
    SHERD_ASSERT_OK_AND_ASSIGN(tensors.emplace_back(),
                               ShardedTensor::FromLocalTensor(
                                   value(rank), Chunks(0, 2), {2, 3}, options));
    SHERD_ASSERT_OK_AND_ASSIGN(
        tensors.emplace_back(),
        ShardedTensor::FromLocalShardsAndMetadata(
            {shard(rank)}, assembled.metadata(), options));
    for (const ShardedTensor& tensor : tensors) {
      SHERD_ASSERT_OK_AND_ASSIGN(const RemoteShards remote,
                                 tensor.remote_shards());
      SHERD_ASSERT_OK_AND_ASSIGN(const Shard here,
                                 remote.at(1 - rank)[0].ToHere());
      EXPECT_THAT(here.tensor, TensorEq(value(1 - rank)));
    }
    ASSERT_THAT(group.Barrier(), IsOk());
  });
}

// Seed 001, test_create_sharded_tensor_with_... and
// test_sharded_tensor_device_error: the texts of the reference.
TEST_F(RemoteShardsTest, WithoutRpcThereAreNone) {
  RunLocalRanks(2, [this](ProcessGroup& group) {
    EXPECT_THAT(
        ShardedTensor::Empty(Chunks(0, 2), {4, 3}, {.init_rrefs = true}),
        StatusIs(kFailed, "RPC Framework needs to be initialized"));
    const auto named = ChunkShardingSpec::Create(0, {"worker0/cpu"}).value();
    EXPECT_THAT(ShardedTensor::Empty(named, {4, 3}),
                StatusIs(kFailed, "RPC framework needs to be initialized"));
    EXPECT_THAT(
        ShardedTensor::Empty(Chunks(0, 2), {4, 3}).value().remote_shards(),
        StatusIs(kFailed, "ShardedTensor created with init_rrefs=False"));

    const auto access = Start(group.rank(), 2);
    // The workers of the default are known by name.
    EXPECT_THAT(ShardedTensor::Empty(named, {4, 3}), IsOk());
    const auto foo = ChunkShardingSpec::Create(0, {"workerfoo/cpu"}).value();
    EXPECT_THAT(ShardedTensor::Empty(foo, {4, 3}, {.init_rrefs = true}),
                StatusIs(kInvalid, "Invalid worker name"));
    EXPECT_THAT(access->Shutdown(), IsOk());
    EXPECT_THAT(ShardedTensor::Empty(Chunks(0, 2), {4, 3},
                                     {.workers = access, .init_rrefs = true}),
                StatusIs(kFailed, "RPC Framework needs to be initialized"));
  });
}

// Seed 001, test_invalid_pg_rpc_ranks.
TEST_F(RemoteShardsTest, WorkersAndRanksAreTheSame) {
  RunLocalRanks(2, [this](ProcessGroup& group) {
    const auto access = Start(1 - group.rank(), 2);
    EXPECT_THAT(
        ShardedTensor::Empty(Chunks(0, 2), {4, 3}, {.init_rrefs = true}),
        StatusIs(kInvalid,
                 "Default ProcessGroup and RPC ranks must be the "
                 "same, found rank"));
    EXPECT_THAT(access->Shutdown(), IsOk());
  });
}

TEST_F(RemoteShardsTest, AnErrorOnOneRankIsThatOfAllAndTheNextTensorIsRight) {
  RunLocalRanks(3, [this](ProcessGroup& group) {
    std::shared_ptr<RemoteAccess> access = Start(group.rank(), 3);
    const auto create = [](std::shared_ptr<RemoteAccess> workers) {
      return ShardedTensor::Ones(Chunks(0, 3), {6},
                                 {.workers = workers, .init_rrefs = true});
    };
    SHERD_ASSERT_OK_AND_ASSIGN(const auto stopped, [&]() {
      // One that was shut down already.
      auto store = std::make_shared<HashStore>();
      auto other = StartStoreRemoteAccess(
          {.rank = 0, .world_size = 1, .store = store, .name = "alone"});
      EXPECT_THAT((*other)->Shutdown(), IsOk());
      return other;
    }());
    for (int attempt = 0; attempt < 2; ++attempt) {
      const absl::Status status =
          create(group.rank() == 1 ? stopped : access).status();
      EXPECT_THAT(status,
                  StatusIs(kFailed, "rank 1: RPC Framework needs to be"));
      EXPECT_EQ(ErrorRank(status), 1);
    }
    // Rank 1 has counted two tensors less than the others.
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor tensor, create(access));
    EXPECT_THAT(access->Fetch(1, {.publication = {group.name(), 0}}),
                StatusIs(absl::StatusCode::kNotFound));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor next, create(access));
    EXPECT_EQ(access->TakeNumber(group.name()), 4);
    const RemoteShards remote = tensor.remote_shards().value();
    for (const auto& [rank, shards] : remote) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Shard shard, shards[0].ToHere());
      EXPECT_THAT(shard.tensor, TensorEq(Tensor::Ones({2}, {})));
    }
    EXPECT_THAT(access->Shutdown(), IsOk());
  });
}

}  // namespace
}  // namespace sherd
