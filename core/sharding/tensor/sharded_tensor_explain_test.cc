#include "sherd/core/sharding/sharded_tensor_explain.h"

#include <cstdint>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/same_error.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::Chunks;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;

TEST(ExplainReshardTest, MatchesTheReshard) {
  RunLocalRanks(2, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        ShardedTensor tensor,
        ShardedTensor::Zeros(Chunks(0, 2), {6, 4}, {.dtype = kInt64}));
    SHERD_ASSERT_OK_AND_ASSIGN(const PlanReport report,
                               ExplainReshard(tensor, Chunks(1, 2)));
    EXPECT_EQ(report.world_size(), 2);
    EXPECT_EQ(report.bytes_moved(), 6 * 4 * 8 / 2);
    EXPECT_EQ(report.bytes_moved(), report.lower_bound_bytes());
    // The prediction matches the actual move.
    ReshardStats stats;
    ASSERT_TRUE(tensor.Reshard(Chunks(1, 2), {.stats = &stats}).ok());
    EXPECT_EQ(stats.bytes_sent, report.ranks[group.rank()].bytes_sent);
    EXPECT_EQ(stats.bytes_local, report.ranks[group.rank()].bytes_local);
    EXPECT_THAT(
        ExplainReshard(tensor, Chunks(2, 2)),
        StatusIs(absl::StatusCode::kInvalidArgument, "Invalid sharding dim"));
  });
  EXPECT_THAT(
      ExplainReshard(ShardedTensor(), Chunks(0, 1)),
      StatusIs(absl::StatusCode::kFailedPrecondition, "was not created"));
}

}  // namespace
}  // namespace sherd
