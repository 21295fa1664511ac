#include <cstdint>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/nn/update/update_cases.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"

// Updates over processes and real backends.

namespace sherd {
namespace {

using ::sherd::testing::CheckRandomUpdate;
using ::sherd::testing::StatusIs;

class UpdateProcessTest : public sherd::testing::PersistentDistributedTest {};

SHERD_DIST_TEST_F(UpdateProcessTest, RandomTablesHaveTheBitsOfTheModel) {
  constexpr uint64_t kFirstSeed = 11;
  for (uint64_t i = 0; i < 150 && !HasFailure(); ++i) {
    CheckRandomUpdate(group(), kFirstSeed + i);
  }
}

SHERD_DIST_TEST_F(UpdateProcessTest, AWrongGradientIsTheSameErrorOnAll) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto rows,
      ChunkShardingSpec::Create(0, PlacementsOnRanks(world_size())));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor table,
                             ShardedTensor::Ones(rows, {10, 4}));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor ids,
                             Tensor::FromSpan<int64_t>({0, 9}, {2, 1}));
  for (const bool direct : {true, false}) {
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor gradient,
                               Tensor::Ones({2, rank() == 1 ? 3 : 4}));
    EXPECT_THAT(Update({{table, {ids}}}, {gradient}, {.direct = direct}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "update: rank 1: table 0: the gradient needs to be"));
  }
}

}  // namespace
}  // namespace sherd
