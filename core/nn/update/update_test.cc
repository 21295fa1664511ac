#include "sherd/core/nn/update.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/update/update_cases.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"
#include "sherd/testing/tensor_matchers.h"

// Updates on one to five ranks, on both paths, against updates of whole tables
// on one rank.

namespace sherd {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::CheckRandomUpdate;
using ::sherd::testing::IsOk;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::TensorBitwiseEq;

TEST(UpdateTest, ReplicasInOneProcessStayEqual) {
  for (const SparseRule rule :
       {SparseRule::kAdagrad, SparseRule::kRowWiseAdagrad}) {
    ShardedTensorMetadata metadata;
    metadata.size = {4, 2};
    std::vector<Shard> shards;
    for (const char* const placement : {"rank:0/cpu", "rank:1/cpu"}) {
      metadata.shards.push_back(
          {.offsets = {0, 0}, .sizes = {4, 2}, .placement = placement});
      shards.push_back({Tensor::Ones({4, 2}).value(), metadata.shards.back()});
    }
    const ShardedTensor table =
        ShardedTensor::WithoutGroup(
            shards, metadata,
            EnumerableShardingSpec::CreateWithReplicas(metadata.shards).value())
            .value();
    const Tensor ids = Tensor::FromSpan<int64_t>({3, 1}, {2, 1}).value();
    for (int step = 0; step < 2; ++step) {
      ASSERT_THAT(Update({{table, {ids}}}, {Tensor::Ones({2, 2}).value()},
                         {.rule = rule, .learning_rate = 0.1}),
                  IsOk());
    }
    EXPECT_THAT(table.local_shards()[0].tensor,
                TensorBitwiseEq(table.local_shards()[1].tensor));
  }
}

TEST(UpdateTest, RandomTablesAndBagsHaveTheBitsOfTheModel) {
  const uint64_t seed = RandomSeed();
  const int64_t cases = CaseCount(1000);
  constexpr int64_t kCasesPerGroup = 50;
  for (int64_t first = 0; first < cases; first += kCasesPerGroup) {
    const int ranks = 1 + static_cast<int>((first / kCasesPerGroup) % 5);
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      for (int64_t i = first; i < std::min(first + kCasesPerGroup, cases);
           ++i) {
        CheckRandomUpdate(group, seed + static_cast<uint64_t>(i));
        if (HasFailure()) return;
      }
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sherd
