// The failing test of @sherd//testing:README.md: failing_test_report runs it.

#include <vector>

#include "gtest/gtest.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"

using ::sherd::testing::IsOk;

class SumTest : public sherd::testing::DistributedTest {};

SHERD_DIST_TEST_F(SumTest, IsThatOfAllRanks) {
  std::vector<float> values = {static_cast<float>(rank())};
  ASSERT_THAT(
      group().AllReduce<float>(absl::MakeSpan(values), sherd::ReduceOp::kSum),
      IsOk());
  if (rank() == 2) values[0] += 1;  // a bug on one rank
  EXPECT_EQ(values[0], 0 + 1 + 2 + 3);
}
