// The single tests shown in @sherd//testing:README.md.

#include <csignal>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/rank_matchers.h"
#include "sherd/testing/sharded_matchers.h"

using namespace sherd::testing;  // IsOk, TensorEq, RequiresBackend, …

class RecipesTest : public DistributedTest {};

// A process group.

SHERD_DIST_TEST_F(RecipesTest, OnAnotherBackend,
                  WithComms{.backend = "shm", .timeout = absl::Seconds(10)}) {
  EXPECT_EQ(group().backend().name, "shm");
}

SHERD_DIST_TEST_F(RecipesTest, WithAGroupOfItsOwn, WithoutComms{}) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto group, sherd::Init({}));
  EXPECT_EQ(group->size(), world_size());
  EXPECT_THAT(group->Destroy(), IsOk());
}

// Requirements of a test.

SHERD_DIST_TEST_F(RecipesTest, OnGpus, WithComms{.backend = "nccl"},
                  SkipIfFewerGpusThan(4), RequiresRpc()) {
  FAIL() << "this host does not have four GPUs, NCCL and RPC";
}

SHERD_DIST_TEST_F(RecipesTest, InPairs) {
  SHERD_REQUIRE(RequiresEvenWorldSize());
  SHERD_ASSERT_OK_AND_ASSIGN(const auto pair,
                             group().NewGroup({rank() & ~1, rank() | 1}));
  EXPECT_EQ(pair->size(), 2);
}

// Matchers.

SHERD_DIST_TEST_F(RecipesTest, AllRanksEndAtTheSameLine) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto rows,
                             sherd::ChunkShardingSpec::Create(
                                 0, sherd::PlacementsOnRanks(world_size())));
  const auto ones = sherd::ShardedTensor::Ones(rows, {10, 7});
  ASSERT_THAT(ones, AllRanksSucceeded(group()));
  EXPECT_THAT(*ones, OnAllRanks(group(), ShardedTensorEq(*ones)));
  const sherd::Tensor& mine = ones->local_shards()[0].tensor;
  EXPECT_THAT(mine, TensorNear(sherd::Tensor::Ones(mine.sizes())));
}

// Faults.

SHERD_DIST_TEST_F(RecipesTest, TheOthersLearnWhichRankDied) {
  ExpectRankDies(2, SIGKILL);
  KillRankAt fault("comm/before_post", 2);
  const absl::Status status = group().Barrier();
  EXPECT_EQ(sherd::ErrorRank(status), 2) << status;
}

SHERD_DIST_TEST_F(RecipesTest, ARenameFailsOnRank1) {
  FailFileOperation fault("rename", "*/manifest", absl::DataLossError("torn"),
                          {.rank = 1});
  const absl::Status status = sherd::FileSystem::Posix().Rename(
      temp_dir() + "/new", temp_dir() + "/manifest");
  if (rank() == 1) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, "torn"));
  }
}
