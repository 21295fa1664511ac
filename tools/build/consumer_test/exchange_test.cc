// The first test of @sherd//testing:README.md.

#include <cstddef>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"

using ::sherd::testing::IsOk;

class ExchangeTest : public sherd::testing::DistributedTest {};

SHERD_DIST_TEST_F(ExchangeTest, EveryRankGetsEveryByte) {
  const auto mine = static_cast<std::byte>(rank());
  std::vector<std::byte> all(world_size());
  ASSERT_THAT(group().AllGather({&mine, 1}, absl::MakeSpan(all)), IsOk());
  for (int r = 0; r < world_size(); ++r) {
    EXPECT_EQ(static_cast<int>(all[r]), r);
  }
}
