// One test for several world sizes and backends.

#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"

using ::sherd::testing::IsOk;
using ::testing::Combine;
using ::testing::Values;

class SumTest
    : public sherd::testing::DistributedTest,
      public ::testing::WithParamInterface<std::tuple<int, std::string>> {
 protected:
  int world_size() const override { return std::get<0>(GetParam()); }
};

SHERD_DIST_TEST_P(SumTest, IsThatOfAllRanks,
                  WithComms{.backend = std::get<1>(GetParam())}) {
  EXPECT_EQ(group().size(), world_size());
  std::vector<float> values = {static_cast<float>(rank())};
  ASSERT_THAT(
      group().AllReduce<float>(absl::MakeSpan(values), sherd::ReduceOp::kSum),
      IsOk());
  EXPECT_EQ(values[0], world_size() * (world_size() - 1) / 2);
}

INSTANTIATE_TEST_SUITE_P(Ranks, SumTest,
                         Combine(Values(1, 2, 4), Values("gloo", "shm")));
