// Whether moves are what reports foresaw.

#include <cstdint>
#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/plan/plan_report.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_explain.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;

ShardingSpecPtr RandomLayout(const Dims& size, int ranks,
                             std::mt19937_64& random) {
  return random() % 3 == 0
             ? sherd::testing::RandomMesh(size, AllRanks(ranks), random)
             : sherd::testing::RandomSpec(size, ranks, random);
}

void CheckMove(const Dims& size, const ShardingSpecPtr& from,
               const ShardingSpecPtr& to, int64_t staging) {
  SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                             ShardedTensor::Zeros(from, size));
  const int rank = tensor.rank();
  for (const bool direct : {false, true}) {
    ShardedTensor moved = tensor;
    ReshardStats stats;
    const ReshardOptions options = {
        .max_staging_bytes = staging, .direct = direct, .stats = &stats};
    SHERD_ASSERT_OK_AND_ASSIGN(const PlanReport report,
                               ExplainReshard(tensor, to, options));
    ASSERT_THAT(moved.Reshard(to, options), IsOk());
    const RankReport& foreseen = report.ranks[rank];
    EXPECT_EQ(stats.lower_bound_bytes, foreseen.lower_bound_bytes);
    if (stats.strategy != TransferStrategy::kMessages) {
      EXPECT_EQ(stats.staging_bytes, 0);
      continue;
    }
    EXPECT_EQ(stats.bytes_sent, foreseen.bytes_sent);
    EXPECT_EQ(stats.bytes_received, foreseen.bytes_received);
    EXPECT_EQ(stats.rounds, report.rounds);
    EXPECT_EQ(stats.staging_bytes, foreseen.staging_bytes);
  }
}

TEST(PlanReportMoveTest, AMoveMatchesItsReport) {
  const uint64_t seed = sherd::testing::RandomSeed();
  for (const int ranks : {1, 2, 3, 5}) {
    sherd::testing::RunLocalRanks(ranks, [&](ProcessGroup& group) {
      // The same on all ranks.
      std::mt19937_64 random(seed);
      for (int i = 0; i < 25 && !::testing::Test::HasFailure(); ++i) {
        const Dims size = sherd::testing::RandomSize(4, 3000, random);
        const ShardingSpecPtr from = RandomLayout(size, group.size(), random);
        const ShardingSpecPtr to = RandomLayout(size, group.size(), random);
        const int64_t staging = random() % 2 == 0 ? 64 << 20 : 1000;
        SCOPED_TRACE(absl::StrCat("seed ", seed, ", case ", i));
        CheckMove(size, from, to, staging);
      }
    });
  }
}

}  // namespace
}  // namespace sherd
