#include "sherd/testing/kits/rank_threads.h"

#include <pthread.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

using ::testing::ElementsAre;

std::string OwnName() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

TEST(RankThreadsTest, AllRanksRunAtTheSameTime) {
  std::vector<std::string> names(3);
  auto* const barrier = new absl::Barrier(3);
  RunRankThreads(3, [&](int rank) {
    names[rank] = OwnName();
    // Does not return before all are here.
    if (barrier->Block()) delete barrier;
  });
  EXPECT_THAT(names, ElementsAre("rank 0", "rank 1", "rank 2"));
}

TEST(RankThreadsTest, WithoutRanksNothingRuns) {
  RunRankThreads(0, [](int rank) { ADD_FAILURE() << rank; });
}

TEST(RankThreadsTest, AFailedExpectationCarriesItsRank) {
  EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(
      RunRankThreads(3, [](int rank) { EXPECT_NE(rank, 1) << "is wrong"; }),
      "rank 1");
}

TEST(RankThreadsTest, ThreadsAreKeptFromOneJobToTheNext) {
  RankThreads threads;
  ASSERT_THAT(threads.Reserve(2), IsOk());
  std::vector<std::thread::id> first(2), second(2);
  for (std::vector<std::thread::id>* ids : {&first, &second}) {
    std::atomic<int> left = 2;
    absl::Notification done;
    threads.Run(2, [&](int rank) {
      (*ids)[rank] = std::this_thread::get_id();
      if (--left == 0) done.Notify();
    });
    done.WaitForNotification();
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first[0], first[1]);
}

TEST(RankThreadsTest, TheirEndWaitsForTheJobs) {
  std::atomic<int> ran = 0;
  absl::Notification may_end;
  {
    RankThreads threads;
    ASSERT_THAT(threads.Reserve(3), IsOk());
    threads.Run(2, [&](int rank) {
      if (rank == 0) may_end.WaitForNotification();
      ++ran;
    });
    may_end.Notify();
  }
  EXPECT_EQ(ran, 2);
}

}  // namespace
}  // namespace sherd::testing
