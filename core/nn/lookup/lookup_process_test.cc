#include <cstdint>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/lookup_cases.h"
#include "sherd/core/nn/lookup/lookup_model.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"

// Lookups over processes and real backends.

namespace sherd {
namespace {

using ::sherd::testing::CheckRandomLookUp;
using ::sherd::testing::CheckReferenceLookUps;
using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;

class LookUpProcessTest : public sherd::testing::PersistentDistributedTest {};

SHERD_DIST_TEST_F(LookUpProcessTest, RandomTablesAndBagsEqualTheModel) {
  const bool reachable = group().backend().name == "shm";
  constexpr uint64_t kFirstSeed = 7;
  for (uint64_t i = 0; i < 150 && !HasFailure(); ++i) {
    CheckRandomLookUp(group(), kFirstSeed + i, reachable);
  }
}

SHERD_DIST_TEST_F(LookUpProcessTest, EveryCaseOfTheReference) {
  CheckReferenceLookUps(group(), group().backend().name == "shm");
}

SHERD_DIST_TEST_F(LookUpProcessTest, AnIdOutOfRangeIsTheSameErrorOnAll) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto rows,
      ChunkShardingSpec::Create(0, PlacementsOnRanks(world_size())));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor table,
                             ShardedTensor::Ones(rows, {10, 4}));
  for (const bool direct : {true, false}) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const Tensor ids,
        Tensor::FromSpan<int64_t>({0, rank() == 1 ? 10 : 9}, {2, 1}));
    EXPECT_THAT(LookUp({{table, {ids}}}, {.direct = direct}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "look_up: rank 1: table 0: Index out of range in "
                         "Input: the id at position 1 is 10"));
  }
}

}  // namespace
}  // namespace sherd
