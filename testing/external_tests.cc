// Tests for external_ranks_test, which starts this program once per rank.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/threaded_test.h"

namespace sherd::testing {
namespace {

class ExternalTest : public DistributedTest {
 protected:
  int world_size() const override { return 3; }
};

SHERD_DIST_TEST_F(ExternalTest, Passes) {
  const auto mine = static_cast<std::byte>(10 + rank());
  std::byte all[3] = {};
  ASSERT_THAT(
      group().AllGather(absl::MakeConstSpan(&mine, 1), absl::MakeSpan(all)),
      IsOk());
  for (int r = 0; r < 3; ++r) EXPECT_EQ(static_cast<int>(all[r]), 10 + r);
  if (rank() == 2) {
    ASSERT_THAT(store().Set("directory", temp_dir()), IsOk());
  }
  EXPECT_THAT(store().Get("directory", Deadline::After(absl::Seconds(20))),
              IsOkAndHolds(temp_dir()));
  EXPECT_EQ(access(temp_dir().c_str(), F_OK), 0);
}

SHERD_DIST_TEST_F(ExternalTest, FailsOnRank1) {
  EXPECT_NE(rank(), 1) << "planted";
  EXPECT_EQ(HasFailure(), rank() == 1);
}

SHERD_DIST_TEST_F(ExternalTest, AssertsOnRank1, WithoutComms{}) {
  ASSERT_NE(rank(), 1) << "planted";
}

SHERD_DIST_TEST_F(ExternalTest, SkipsEverywhere) {
  SHERD_SKIP(SkipReason::kNoCuda) << "planted";
}

SHERD_DIST_TEST_F(ExternalTest, SkipsOnRank2) {
  if (rank() == 2) GTEST_SKIP() << "planted";
}

SHERD_DIST_TEST_F(ExternalTest, DiesOnRank1) {
  if (rank() == 1) raise(SIGKILL);
  EXPECT_THAT(group().Barrier(), IsOk());
}

SHERD_DIST_TEST_F(ExternalTest, Follows) {
  EXPECT_THAT(group().Barrier(), IsOk());
}

class SmallExternalTest : public DistributedTest {
 protected:
  int world_size() const override { return 2; }
};

SHERD_DIST_TEST_F(SmallExternalTest, PassesOnTheFirstRanks) {
  EXPECT_LT(rank(), 2);
  EXPECT_EQ(group().size(), 2);
  EXPECT_THAT(group().Barrier(), IsOk());
}

class LargeExternalTest : public DistributedTest {
 protected:
  int world_size() const override { return 9; }
};

SHERD_DIST_TEST_F(LargeExternalTest, IsTooLarge) {}

class HangingExternalTest : public ExternalTest {
 protected:
  absl::Duration timeout() const override { return absl::Seconds(1); }
};

SHERD_DIST_TEST_F(HangingExternalTest, DoesNotReturnOnRank2, WithoutComms{}) {
  if (rank() == 2) {
    for (;;) pause();
  }
}

class ThreadsInExternalTest : public ThreadedDistributedTest {
 protected:
  int world_size() const override { return 2; }
};

SHERD_DIST_TEST_F(ThreadsInExternalTest, RunInOneProcess) {
  if (rank() == 0) std::printf("threads run here\n");
}

TEST(PlainExternalTest, RunsInOneProcess) {
  std::printf("a plain test runs here\n");
}

TEST(PlainExternalTest, Fails) { FAIL() << "planted"; }

}  // namespace
}  // namespace sherd::testing
