// Built everywhere; runs where there are two GPUs and a plugin, and says what
// is missing where not.

#include <cstddef>

#include "gtest/gtest.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"

using ::sherd::testing::IsOk;

class GpuTest : public sherd::testing::DistributedTest {};

SHERD_DIST_TEST_F(GpuTest, RanksMeet) {
  EXPECT_THAT(group().Barrier(), IsOk());
}
