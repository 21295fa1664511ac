#include "sherd/testing/local_ranks.h"

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/tensor/random.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// What the ranks of one run saw.
template <typename T>
class Seen {
 public:
  void Add(T value) {
    absl::MutexLock lock(&mutex_);
    values_.insert(value);
  }
  std::multiset<T> values() {
    absl::MutexLock lock(&mutex_);
    return values_;
  }

 private:
  absl::Mutex mutex_;
  std::multiset<T> values_ ABSL_GUARDED_BY(mutex_);
};

TEST(LocalRanksTest, EachRankRunsOnceOnAThreadOfItsOwn) {
  Seen<int> ranks;
  std::set<std::thread::id> threads;
  absl::Mutex mutex;
  RunLocalRanks(3, [&](ProcessGroup& group) {
    EXPECT_EQ(group.size(), 3);
    EXPECT_EQ(group.backend().name, "local");
    ranks.Add(group.rank());
    absl::MutexLock lock(&mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_THAT(ranks.values(), ElementsAre(0, 1, 2));
  EXPECT_THAT(threads, SizeIs(3));
}

TEST(LocalRanksTest, TheGroupConnectsTheRanks) {
  RunLocalRanks(4, [](ProcessGroup& group) {
    const auto mine = static_cast<std::byte>(10 + group.rank());
    std::byte all[4] = {};
    ASSERT_THAT(
        group.AllGather(absl::MakeConstSpan(&mine, 1), absl::MakeSpan(all)),
        IsOk());
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(static_cast<int>(all[r]), 10 + r);
    }
  });
}

TEST(LocalRanksTest, EachRankHasItsOwnDefaultGroup) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(const auto found, DefaultGroup());
    EXPECT_EQ(found.get(), &group);
  });
  EXPECT_THAT(DefaultGroup(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(LocalRanksTest, EachRankHasItsOwnDefaultGenerator) {
  Seen<const Generator*> generators;
  RunLocalRanks(3, [&](ProcessGroup& group) {
    EXPECT_EQ(DefaultGenerator().GetState(), Generator::State());
    ManualSeed(static_cast<uint64_t>(group.rank()));
    ASSERT_THAT(group.Barrier(), IsOk());
    EXPECT_EQ(DefaultGenerator().GetState().seed,
              static_cast<uint64_t>(group.rank()));
    generators.Add(&DefaultGenerator());
    ASSERT_THAT(group.Barrier(), IsOk());
  });
  const auto all = generators.values();
  EXPECT_THAT(std::set<const Generator*>(all.begin(), all.end()), SizeIs(3));
}

TEST(LocalRanksTest, AFailureOnARankFailsTheTestAndNamesTheRank) {
  EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(
      RunLocalRanks(3, [](ProcessGroup& group) { EXPECT_NE(group.rank(), 1); }),
      "rank 1");
}

TEST(LocalRanksTest, ARankThatReturnsEarlyDoesNotHangTheOthers) {
  Seen<int> told;
  RunLocalRanks(3, [&](ProcessGroup& group) {
    if (group.rank() == 1) return;
    const absl::Status status = group.Barrier();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, "rank 1"));
    told.Add(group.rank());
  });
  EXPECT_THAT(told.values(), ElementsAre(0, 2));
}

TEST(LocalRanksTest, ARankThatThrowsFailsTheTestAndEndsTheOthersWaits) {
  static std::atomic<int> told;
  EXPECT_NONFATAL_FAILURE_ON_ALL_THREADS(
      RunLocalRanks(3,
                    [](ProcessGroup& group) {
                      if (group.rank() == 2) throw std::runtime_error("oops");
                      if (!group.Barrier().ok()) ++told;
                    }),
      "the body of rank 2 ended with an exception: oops");
  EXPECT_EQ(told, 2);
}

TEST(LocalRanksTest, ATimeoutNamesTheRankThatIsWaitedFor) {
  absl::Mutex mutex;
  bool waited = false;
  RunLocalRanks(2,
                [&](ProcessGroup& group) {
                  if (group.rank() == 0) {
                    const absl::Status status = group.Barrier();
                    EXPECT_THAT(status,
                                StatusIs(absl::StatusCode::kDeadlineExceeded));
                    EXPECT_EQ(ErrorRank(status), 1);
                    absl::MutexLock lock(&mutex);
                    waited = true;
                  } else {
                    absl::MutexLock lock(&mutex);
                    mutex.Await(absl::Condition(&waited));
                  }
                },
                {.timeout = absl::Milliseconds(200)});
}

TEST(LocalRanksTest, RunsMayFollowEachOther) {
  for (int n : {1, 5, 2}) {
    std::atomic<int> runs{0};
    RunLocalRanks(n, [&](ProcessGroup& group) {
      EXPECT_THAT(group.Barrier(), IsOk());
      ++runs;
    });
    EXPECT_EQ(runs, n);
  }
}

TEST(LocalRanksTest, NoRanksIsRefused) {
  EXPECT_FATAL_FAILURE(RunLocalRanks(0, [](ProcessGroup&) {}),
                       "at least one rank");
}

}  // namespace
}  // namespace sherd::testing
