#include "sherd/testing/kits/same_error.h"

#include <vector>

#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_pattern.h"

namespace sherd::testing {

ShardingSpecPtr Chunks(int dim, int ranks) {
  return ChunkShardingSpec::Create(dim, PlacementsOnRanks(ranks)).value();
}

void ExpectSameError(
    int ranks, const std::function<absl::Status(ShardedTensor&, int)>& body,
    absl::StatusCode code, const std::string& phrase,
    std::optional<int> error_rank) {
  SCOPED_TRACE(phrase);
  std::vector<absl::Status> statuses(ranks);
  RunLocalRanks(ranks, [&](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(ShardedTensor tensor,
                               ShardedTensor::Empty(Chunks(0, ranks), {6, 4}));
    FillPattern(tensor);
    const ShardedTensor before = tensor;
    statuses[group.rank()] = body(tensor, group.rank());
    EXPECT_EQ(tensor.metadata(), before.metadata());
    ASSERT_EQ(tensor.local_shards().size(), before.local_shards().size());
    EXPECT_EQ(tensor.local_shards()[0].tensor.data(),
              before.local_shards()[0].tensor.data());
    EXPECT_TRUE(HasPattern(tensor));
    EXPECT_THAT(tensor.Reshard(Chunks(1, ranks)), IsOk());
    EXPECT_TRUE(HasPattern(tensor));
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, statuses[0]);
    EXPECT_THAT(status, StatusIs(code, phrase));
    const ErrorInfo info = GetErrorInfo(status);
    EXPECT_EQ(info.rank, error_rank) << status;
    EXPECT_NE(info.group, "") << status;
    EXPECT_NE(info.operation, "") << status;
  }
}

}  // namespace sherd::testing
