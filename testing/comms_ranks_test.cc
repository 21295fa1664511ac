// Communication of ranks that are processes.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/comm/store_remote_access.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

// As a library does that implements remote access.
[[maybe_unused]] const bool registered = [] {
  RegisterRemoteAccess(StartStoreRemoteAccess);
  return true;
}();

class CommsRanksTest : public DistributedTest {
 protected:
  static Tensor ShardOf(int64_t rank) {
    return *Tensor::FromSpan<int64_t>({rank, 10 * rank, 100 * rank + 1}, {3});
  }
};

SHERD_DIST_TEST_F(CommsRanksTest, EveryRankFetchesFromTheNext,
                  WithComms{.init_rpc = true}, RequiresRpc()) {
  ASSERT_EQ(static_cast<int>(remote_access().workers().size()), world_size());
  ASSERT_THAT(remote_access().Publish("shard", ShardOf(rank())), IsOk());
  ASSERT_THAT(group().Barrier(), IsOk());
  const int next = (rank() + 1) % world_size();
  const absl::StatusOr<Tensor> shard =
      remote_access().Fetch(next, "shard", absl::Seconds(30));
  ASSERT_THAT(shard, IsOk());
  EXPECT_TRUE(shard->BitwiseEqual(ShardOf(next))) << *shard;
}

// The store of the test is not disturbed by the other users of its file.
SHERD_DIST_TEST_F(CommsRanksTest, TheTestsStoreIsItsOwn,
                  WithComms{.init_rpc = true}) {
  const absl::StatusOr<int64_t> count = store().Add("worker/0", 1);
  ASSERT_THAT(count, IsOk());
  EXPECT_LE(*count, world_size());
  ASSERT_THAT(group().Barrier(), IsOk());
  EXPECT_EQ(*store().Get("worker/0", Deadline::Infinite()),
            absl::StrCat(world_size()));
}

SHERD_DIST_TEST_F(CommsRanksTest, WithoutTheFinalBarrierNobodyWaitsForAnybody,
                  WithComms{.init_rpc = true}) {
  SkipFinalBarrier();
  ASSERT_THAT(remote_access().Publish("shard", ShardOf(rank())), IsOk());
  // The others end only when rank 0 has ended its remote access.
  if (rank() == 0) return;
  absl::StatusOr<Tensor> shard = remote_access().Fetch(0, "shard", {});
  while (!absl::IsUnavailable(shard.status())) {
    shard = remote_access().Fetch(0, "shard", {});
  }
}

SHERD_DIST_TEST_F(CommsRanksTest, WithoutCommsThereIsNoGroup, WithoutComms{}) {
  EXPECT_THAT(DefaultGroup(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

class SkippingTest : public DistributedTest {
 protected:
  void SetUp() override {
    SHERD_REQUIRE(RequiresWorldSizeAtLeast(200));
    set_up_ = true;
  }

  bool set_up_ = false;
};

// Passes only as a skip.
SHERD_DIST_TEST_F(SkippingTest, ASetUpThatRequiresWhatIsMissingSkipsTheBody) {
  FAIL() << "the body runs, set up: " << set_up_;
}

}  // namespace
}  // namespace sherd::testing
