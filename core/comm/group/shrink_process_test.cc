// Ranks that are processes, of which some are killed or stopped: the others
// Shrink and go on. On mpi the launcher ends all ranks with the first.

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::KillRankAt;
using ::sherd::testing::StatusIs;
using ::sherd::testing::StopRankAt;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

class ShrinkProcessTest : public sherd::testing::DistributedTest {
 protected:
  int world_size() const override { return 4; }

  // Also on the device, if the group has one.
  static absl::Status Sum(ProcessGroup& group, std::vector<int32_t>& values) {
    if (group.device()) {
      absl::Status on_device = group.Barrier({.device = *group.device()});
      if (on_device.ok()) on_device = group.Synchronize();
      if (!on_device.ok()) return on_device;
    }
    return group.AllReduce(absl::MakeSpan(values), ReduceOp::kSum);
  }

  static void ExpectWorks(
      const absl::StatusOr<std::shared_ptr<ProcessGroup>>& group,
      const std::vector<int>& job_ranks) {
    ASSERT_THAT(group, IsOk());
    EXPECT_THAT((*group)->world_ranks(), ElementsAreArray(job_ranks));
    std::vector<int32_t> sum(100000, job_ranks[(*group)->rank()]);
    ASSERT_THAT(Sum(**group, sum), IsOk());
    EXPECT_EQ(sum.back(),
              std::accumulate(job_ranks.begin(), job_ranks.end(), 0));
    // A rank that left first would fail a sum that another is still in.
    EXPECT_THAT((*group)->Barrier(), IsOk());
    EXPECT_THAT((*group)->Destroy(), IsOk());
  }
};

SHERD_DIST_TEST_F(ShrinkProcessTest, TheOthersOfAKilledRankGoOn) {
  ExpectRankDies(2, SIGKILL);
  const KillRankAt fault("comm/before_post", 2);
  std::vector<int32_t> values(100000, 1);
  const absl::Status status =
      group().AllReduce(absl::MakeSpan(values), ReduceOp::kSum);
  EXPECT_TRUE(IsRankFailure(status)) << status;
  EXPECT_EQ(FailedRank(status), 2) << status;
  EXPECT_THAT(group().FailedRanks(), ElementsAre(2));
  ExpectWorks(group().Shrink(), {0, 1, 3});
}

SHERD_DIST_TEST_F(ShrinkProcessTest, OneIsLeftOfMany) {
  for (const int dying : {0, 1, 3}) ExpectRankDies(dying, SIGKILL);
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() != 2) raise(SIGKILL);
  EXPECT_TRUE(IsRankFailure(group().Barrier()));
  ExpectWorks(group().Shrink(), {2});
  EXPECT_THAT(group().FailedRanks(), ElementsAre(0, 1, 3));
}

SHERD_DIST_TEST_F(ShrinkProcessTest, AStoppedRankIsLeftOut) {
  ExpectRankDies(1, SIGKILL);
  if (rank() == 1) {
    ASSERT_THAT(group().store().Set("pid", absl::StrCat(getpid())), IsOk());
  }
  const auto pid = group().store().Get("pid", Deadline::Infinite());
  ASSERT_THAT(pid, IsOk());
  {
    const StopRankAt fault("comm/before_comparison", 1);
    EXPECT_THAT(group().Barrier({.timeout = absl::Seconds(1)}),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  ExpectWorks(group().Shrink(), {0, 2, 3});
  int number;
  ASSERT_TRUE(absl::SimpleAtoi(*pid, &number));
  kill(number, SIGKILL);
}

struct Death {
  std::string point;
  std::string subject = "*";
};

class DyingMeanwhileTest : public ShrinkProcessTest,
                           public ::testing::WithParamInterface<Death> {};

SHERD_DIST_TEST_P(DyingMeanwhileTest, IsLeftOutToo) {
  ExpectRankDies(3, SIGKILL);
  ExpectRankDies(1, SIGKILL);
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == 3) raise(SIGKILL);
  EXPECT_TRUE(IsRankFailure(group().Barrier()));
  const KillRankAt fault(GetParam().point, 1, {.subject = GetParam().subject});
  ExpectWorks(group().Shrink(), {0, 2});
  EXPECT_THAT(group().FailedRanks(), ElementsAre(1, 3));
}

INSTANTIATE_TEST_SUITE_P(
    Points, DyingMeanwhileTest,
    ::testing::Values(Death{"store/set", "*/shrink/1/came/1"},
                      Death{"comm/new_group"}, Death{"comm/before_connecting"},
                      Death{"comm/after_connecting"},
                      Death{"store/set", "*/shrink/1/made/1"}),
    [](const ::testing::TestParamInfo<Death>& info) {
      return absl::StrCat("At", info.index);
    });

// Once it has made the group, it is a member.
SHERD_DIST_TEST_F(ShrinkProcessTest, ARankThatDiesAfterwardsFailsTheNewGroup) {
  ExpectRankDies(3, SIGKILL);
  ExpectRankDies(1, SIGKILL);
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == 3) raise(SIGKILL);
  EXPECT_TRUE(IsRankFailure(group().Barrier()));
  const KillRankAt fault("store/compare_set", 1,
                         {.subject = "*/shrink/1/outcome"});
  const auto three = group().Shrink();
  ASSERT_THAT(three, IsOk());
  EXPECT_THAT((*three)->world_ranks(), ElementsAre(0, 1, 2));
  EXPECT_EQ(FailedRank((*three)->Barrier()), 1);
  ExpectWorks((*three)->Shrink(), {0, 2});
}

}  // namespace
}  // namespace sherd
