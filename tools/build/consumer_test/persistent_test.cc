// Ranks that are processes and go on from test to test.

#include "sherd/testing/persistent_test.h"

#include <unistd.h>

#include <string>

#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

using ::sherd::testing::IsOk;

class StepsTest : public sherd::testing::PersistentDistributedTest {};

SHERD_DIST_TEST_F(StepsTest, BarrierOne) {
  EXPECT_THAT(group().Barrier(), IsOk());
}

SHERD_DIST_TEST_F(StepsTest, BarrierTwo) {
  EXPECT_THAT(group().Barrier(), IsOk());
}

// Which process this rank was in the first of these tests.
pid_t the_process = 0;

SHERD_DIST_TEST_F(StepsTest, RanksAreRemembered) { the_process = getpid(); }

SHERD_DIST_TEST_F(StepsTest, RanksAreTheSameProcesses) {
  EXPECT_EQ(the_process, getpid());
}
