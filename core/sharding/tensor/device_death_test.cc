#include <signal.h>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/tensor_pattern.h"

// One rank of three dies while shards move from device to device.

namespace sherd {
namespace {

using ::sherd::testing::FillPattern;
using ::sherd::testing::HasErrorRank;
using ::sherd::testing::HasPattern;
using ::sherd::testing::IsOk;
using ::sherd::testing::KillRankAt;

constexpr int kFailedRank = 1;

class DeviceDeathTest
    : public sherd::testing::PlacedFixture<sherd::testing::DistributedTest> {
 protected:
  int world_size() const override { return 3; }
};

// Between the agreement, which it takes part in, and its first message: what
// the others have queued waits for it.
SHERD_DIST_TEST_F(DeviceDeathTest, IsNamedAndTheSourceStays) {
  const ShardedTensor source =
      ShardedTensor::Empty(Chunks(0), {64, 60}).value();
  FillPattern(source);
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor into,
                             ShardedTensor::Zeros(Chunks(1), {64, 60}));
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  ExpectRankDies(kFailedRank, SIGKILL);
  KillRankAt fault("comm/before_post", kFailedRank, {.nth = 2});
  absl::Status status = source.ReshardInto(
      into, {.max_staging_bytes = 4096, .timeout = absl::Seconds(20)});
  // Queued work reports the error later.
  if (status.ok()) status = group().Synchronize();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status, HasErrorRank(kFailedRank));
  EXPECT_FALSE(group().health().ok());
  EXPECT_TRUE(HasPattern(source));
  // The survivors continue with their shards.
  SHERD_ASSERT_OK_AND_ASSIGN(const auto rest, group().NewGroup({0, 2}));
  SHERD_ASSERT_OK_AND_ASSIGN(
      ShardedTensor next,
      ShardedTensor::Empty(Chunks(0, {0, 2}), {5, 4}, {.group = rest}));
  FillPattern(next);
  ASSERT_THAT(next.Reshard(Chunks(1, {2, 0})), IsOk());
  EXPECT_TRUE(HasPattern(next));
  ASSERT_THAT(rest->Destroy(), IsOk());
}

}  // namespace
}  // namespace sherd
