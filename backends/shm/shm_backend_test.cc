#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::sherd::testing::WithComms;
using ::testing::HasSubstr;

// Failures of processes; what works is tested by the conformance suite, and
// what the table does by shm_table_test.
class ShmBackendTest : public sherd::testing::DistributedTest {
 protected:
  // The rank that misbehaves: the last one.
  int failed_rank() const { return world_size() - 1; }

  // Larger than all boxes together: passes in many rounds.
  static constexpr size_t kLarge = size_t{48} << 20;

  void ExpectLost(const absl::Status& status) const {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr(absl::StrCat("rank ", failed_rank()))));
    EXPECT_EQ(ErrorRank(status), failed_rank());
  }

  // The survivors can continue in a new group.
  void ExpectNewGroupWorks() {
    std::vector<int> survivors;
    for (int r = 0; r < world_size(); ++r) {
      if (r != failed_rank()) survivors.push_back(r);
    }
    const auto next = group().NewGroup(survivors);
    ASSERT_THAT(next, IsOk());
    EXPECT_EQ((*next)->backend().name, "shm");
    std::vector<int> sum(100000, rank() + 1);
    ASSERT_THAT((*next)->AllReduce(absl::MakeSpan(sum), ReduceOp::kSum),
                IsOk());
    EXPECT_EQ(sum.back(), world_size() * (world_size() - 1) / 2);
    EXPECT_THAT((*next)->Destroy(), IsOk());
  }
};

SHERD_DIST_TEST_F(ShmBackendTest, EveryRankNamesTheKilledRank) {
  ExpectRankDies(failed_rank(), SIGKILL);
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == failed_rank()) raise(SIGKILL);
  const absl::Time start = absl::Now();
  ExpectLost(group().Barrier());
  // Noticed, not timed out.
  EXPECT_LT(absl::Now() - start, group().timeout() / 2);
  ExpectNewGroupWorks();
}

SHERD_DIST_TEST_F(ShmBackendTest, ARankKilledWhileDataMoves) {
  ExpectRankDies(failed_rank(), SIGKILL);
  std::vector<float> values(kLarge / sizeof(float), 1);
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == failed_rank()) {
    // Kills at a different point of the work in each process and run.
    std::thread killer([] {
      absl::SleepFor(absl::Microseconds(1000 + getpid() % 7 * 3000));
      raise(SIGKILL);
    });
    for (;;) {
      group().AllReduce(absl::MakeSpan(values), ReduceOp::kMax).IgnoreError();
    }
  }
  absl::Status status;
  while (status.ok()) {
    status = group().AllReduce(absl::MakeSpan(values), ReduceOp::kMax);
  }
  ExpectLost(status);
  ExpectNewGroupWorks();
}

SHERD_DIST_TEST_F(ShmBackendTest, ARankKilledBetweenTheEndsOfAMessage) {
  ExpectRankDies(failed_rank(), SIGKILL);
  std::vector<std::byte> data(kLarge);
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == failed_rank()) {
    Work work = group().SendAsync(data, 0);
    ASSERT_THAT(
        group().store().Wait({"received"}, Deadline::After(absl::Seconds(60))),
        IsOk());
    raise(SIGKILL);
  }
  if (rank() == 0) {
    ASSERT_THAT(group().Recv(absl::MakeSpan(data), failed_rank()), IsOk());
    Work second = group().RecvAsync(absl::MakeSpan(data), failed_rank());
    ASSERT_THAT(group().store().Set("received", ""), IsOk());
    ExpectLost(second.Wait());
  } else {
    ExpectLost(group().Broadcast(absl::MakeSpan(data), 0));
  }
}

SHERD_DIST_TEST_F(ShmBackendTest, EveryRankNamesTheStoppedRank,
                  (WithComms{.timeout = absl::Seconds(2)})) {
  ExpectRankDies(failed_rank(), SIGKILL);
  ASSERT_THAT(
      group().store().Set(absl::StrCat("pid", rank()), absl::StrCat(getpid())),
      IsOk());
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == failed_rank()) raise(SIGSTOP);
  const absl::Status status = group().Barrier();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(ErrorRank(status), failed_rank());
  // All ranks have their error before the first one ends the stopped rank.
  ASSERT_THAT(group().store().Set(absl::StrCat("judged", rank()), ""), IsOk());
  if (rank() != 0) return;
  for (int r = 0; r < failed_rank(); ++r) {
    ASSERT_THAT(group().store().Wait({absl::StrCat("judged", r)},
                                     Deadline::After(absl::Seconds(30))),
                IsOk());
  }
  const auto pid = group().store().Get(absl::StrCat("pid", failed_rank()),
                                       Deadline::After(absl::Seconds(1)));
  ASSERT_THAT(pid, IsOk());
  kill(std::stoi(*pid), SIGKILL);
}

SHERD_DIST_TEST_F(ShmBackendTest, EveryRankNamesTheRankThatLeft) {
  SkipFinalBarrier();
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == failed_rank()) {
    EXPECT_THAT(group().Destroy(), IsOk());
    return;
  }
  const absl::Status status = group().Barrier();
  ExpectLost(status);
  EXPECT_THAT(status.message(), HasSubstr("left the group"));
}

SHERD_DIST_TEST_F(ShmBackendTest, AbortEndsALongOperationEverywhere) {
  SkipFinalBarrier();
  std::vector<std::byte> data(kLarge);
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(WaitForRanks("ready"), IsOk());
  if (rank() == failed_rank()) {
    Work work = group().RecvAsync(absl::MakeSpan(data), 0);
    group().Abort(absl::CancelledError("stop"));
    EXPECT_FALSE(work.Wait().ok());
    return;
  }
  const absl::Status status = group().Broadcast(absl::MakeSpan(data), 0);
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("stop")));
  EXPECT_EQ(ErrorRank(status), failed_rank());
}

SHERD_DIST_TEST_F(ShmBackendTest, GroupsOfTheSameRanksWorkSideBySide) {
  std::vector<int> all(world_size());
  for (int r = 0; r < world_size(); ++r) all[r] = r;
  const auto other = group().NewGroup(all);
  ASSERT_THAT(other, IsOk());
  constexpr int kCount = 300000;
  std::thread second([&] {
    for (int i = 0; i < 10; ++i) {
      std::vector<int> values(kCount, rank() * 3 + i);
      ASSERT_THAT((*other)->AllReduce(absl::MakeSpan(values), ReduceOp::kMax),
                  IsOk());
      EXPECT_EQ(values[kCount - 1], failed_rank() * 3 + i);
    }
  });
  for (int i = 0; i < 10; ++i) {
    std::vector<int> values(kCount, rank() * 5 + i);
    ASSERT_THAT(group().AllReduce(absl::MakeSpan(values), ReduceOp::kMax),
                IsOk());
    EXPECT_EQ(values[kCount - 1], failed_rank() * 5 + i);
  }
  second.join();
}

}  // namespace
}  // namespace sherd
