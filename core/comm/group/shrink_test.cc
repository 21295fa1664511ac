// Groups of survivors: ProcessGroup::Shrink, with threads as ranks.
// shrink_process_test has processes as ranks.

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/store/tcp_store.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::FailAt;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Group = std::shared_ptr<ProcessGroup>;

// That `group` consists of `job_ranks`, and works.
void ExpectWorks(const absl::StatusOr<Group>& group,
                 const std::vector<int>& job_ranks) {
  ASSERT_THAT(group, IsOk());
  EXPECT_THAT((*group)->world_ranks(), ElementsAreArray(job_ranks));
  ASSERT_TRUE((*group)->is_member());
  std::vector<int32_t> sum = {job_ranks[(*group)->rank()]};
  ASSERT_THAT((*group)->AllReduce(absl::MakeSpan(sum), ReduceOp::kSum), IsOk());
  EXPECT_EQ(sum[0], std::accumulate(job_ranks.begin(), job_ranks.end(), 0));
}

TEST(ShrinkTest, TheRanksThatAreLeftGoOn) {
  RunLocalRanks(4, [](ProcessGroup& world) {
    if (world.rank() == 2) return;
    EXPECT_THAT(world.FailedRanks(), IsEmpty());
    const absl::Status status = world.Barrier();
    EXPECT_TRUE(IsRankFailure(status)) << status;
    EXPECT_EQ(FailedRank(status), 2);
    EXPECT_THAT(world.FailedRanks(), ElementsAre(2));
    const auto group = world.Shrink({.timeout = absl::Seconds(40)});
    ExpectWorks(group, {0, 1, 3});
    EXPECT_EQ((*group)->timeout(), absl::Seconds(40));
    EXPECT_EQ((*group)->name(), "default/shrink#1");
    EXPECT_THAT((*group)->FailedRanks(), IsEmpty());
  });
}

TEST(ShrinkTest, SeveralMayHaveFailedAndNoRankNeedsToKnowAll) {
  RunLocalRanks(6, [](ProcessGroup& world) {
    if (world.rank() % 2 == 1) return;
    // Ranks 2 and 4 have seen no error yet.
    if (world.rank() == 0) {
      EXPECT_TRUE(IsRankFailure(world.Barrier()));
    }
    ExpectWorks(world.Shrink(), {0, 2, 4});
    EXPECT_THAT(world.FailedRanks(), ElementsAre(1, 3, 5));
    EXPECT_TRUE(IsRankFailure(world.health()));
  });
}

TEST(ShrinkTest, AGroupWithoutAFailureKeepsAllRanks) {
  RunLocalRanks(3, [](ProcessGroup& world) {
    ExpectWorks(world.Shrink(), {0, 1, 2});
    EXPECT_THAT(world.FailedRanks(), IsEmpty());
    EXPECT_THAT(world.Barrier(), IsOk());
    ExpectWorks(world.Shrink(), {0, 1, 2});
  });
}

TEST(ShrinkTest, ALateRankLearnsThatTheOthersWentOn) {
  absl::BlockingCounter shrunk(2);
  RunLocalRanks(3, [&](ProcessGroup& world) {
    if (world.rank() == 1) {
      shrunk.Wait();
      const absl::Status failed = world.Barrier();
      EXPECT_FALSE(failed.ok());
      const auto group = world.Shrink();
      EXPECT_THAT(group, StatusIs(absl::StatusCode::kFailedPrecondition,
                                  HasSubstr("this rank was left out")));
      EXPECT_THAT(group.status().message(),
                  HasSubstr("ranks 0, 2 of the group go on without it"));
      EXPECT_EQ(FailedRank(group.status()), 1);
      EXPECT_EQ(GetErrorInfo(group.status()).operation, "shrink");
      EXPECT_FALSE(world.Shrink().ok());
      return;
    }
    const absl::Status status =
        world.Barrier({.timeout = absl::Milliseconds(100)});
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
    ExpectWorks(world.Shrink(), {0, 2});
    shrunk.DecrementCount();
  });
}

TEST(ShrinkTest, ARankThatFailsMeanwhileIsExcludedToo) {
  for (const char* point :
       {"comm/before_connecting", "comm/after_connecting", "store/set"}) {
    SCOPED_TRACE(point);
    const std::string subject =
        absl::string_view(point) == "store/set" ? "*/shrink/1/made/1" : "*";
    RunLocalRanks(4, [&](ProcessGroup& world) {
      if (world.rank() == 3) return;
      EXPECT_TRUE(IsRankFailure(world.Barrier()));
      if (world.rank() == 1) {
        const FailAt fault(
            point, absl::InternalError("the reason"),
            {.rank = 1, .subject = subject, .this_thread = true});
        EXPECT_THAT(world.Shrink(), StatusIs(absl::StatusCode::kInternal,
                                             HasSubstr("the reason")));
        return;
      }
      ExpectWorks(world.Shrink(), {0, 2});
      EXPECT_THAT(world.FailedRanks(), ElementsAre(1, 3));
    });
  }
}

TEST(ShrinkTest, MessagesGiveTheRanksOfTheJob) {
  RunLocalRanks(4, [](ProcessGroup& world) {
    if (world.rank() == 0) return;
    EXPECT_FALSE(world.Barrier().ok());
    auto three = world.Shrink();
    ExpectWorks(three, {1, 2, 3});
    if (world.rank() == 2) {
      EXPECT_THAT((*three)->Destroy(), IsOk());
      return;
    }
    const absl::Status status = (*three)->Barrier();
    EXPECT_EQ(FailedRank(status), 1);
    EXPECT_THAT(
        status.message(),
        AllOf(HasSubstr(absl::StrCat("rank ", (*three)->rank(), " (rank ",
                                     world.rank(), " of the job), barrier #2")),
              HasSubstr("rank 1: left the group; rank 1 of the group is rank 2 "
                        "of the job")));
    EXPECT_THAT((*three)->FailedRanks(), ElementsAre(1));
    ExpectWorks((*three)->Shrink(), {1, 3});
    // The surviving rank still takes part in the parent, whose former decision
    // it shares.
    ExpectWorks(world.NewGroup({1, 3}), {1, 3});
  });
}

TEST(ShrinkTest, NeedsAMemberAndAGroupThatExists) {
  RunLocalRanks(2, [](ProcessGroup& world) {
    const auto other = world.NewGroup({1 - world.rank()});
    ASSERT_THAT(other, IsOk());
    EXPECT_THAT((*other)->FailedRanks(), IsEmpty());
    EXPECT_THAT((*other)->Shrink(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("not a member")));
    EXPECT_THAT(world.Shrink({.timeout = absl::ZeroDuration()}),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(world.Barrier(), IsOk());
    EXPECT_THAT(world.Destroy(), IsOk());
    EXPECT_THAT(world.Shrink(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("destroyed")));
  });
}

TEST(ShrinkTest, AStoreThatEndedWithItsHostIsReported) {
  auto server = TcpStoreServer::Start({});
  ASSERT_THAT(server, IsOk());
  absl::BlockingCounter up(2);
  absl::Notification down;
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&, r] {
      auto store =
          TcpStore::Connect({.host = "127.0.0.1", .port = (*server)->port()});
      ASSERT_THAT(store, IsOk());
      const auto group = Init(
          {.backend = "local", .rank = r, .world_size = 2, .store = *store});
      ASSERT_THAT(group, IsOk());
      up.DecrementCount();
      down.WaitForNotification();
      EXPECT_THAT(
          (*group)->Shrink(),
          StatusIs(
              absl::StatusCode::kUnavailable,
              AllOf(HasSubstr("the store in which the ranks that are left "
                              "agree does not answer"),
                    HasSubstr("ends with the process of rank 0 of the "
                              "job"),
                    HasSubstr("the server has ended or cannot be reached"))));
      EXPECT_THAT((*group)->Destroy(), IsOk());
    });
  }
  up.Wait();
  EXPECT_FALSE((*server)->Shutdown(Deadline::After(absl::ZeroDuration())).ok());
  down.Notify();
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace sherd
