#include "sherd/core/comm/group/survivors.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;

constexpr int kMostRanks = 6;

// Ranks as threads, each with an agreement of its own on one store.
class SurvivorsTest : public ::testing::Test {
 protected:
  std::unique_ptr<SurvivorAgreement> Rank(int rank, int size) {
    return std::make_unique<SurvivorAgreement>(
        store_, rank, size,
        SurvivorAgreement::Sight{
            .has_exited = [this](int r) { return exited_[r].load(); },
            .is_stopped = [this](int r) { return stopped_[r].load(); }});
  }

  static Deadline Soon() { return Deadline::After(absl::Milliseconds(100)); }
  static Deadline Late() { return Deadline::After(absl::Minutes(5)); }

  HashStore store_;
  std::array<std::atomic<bool>, kMostRanks> exited_ = {};
  std::array<std::atomic<bool>, kMostRanks> stopped_ = {};
};

TEST_F(SurvivorsTest, ARankThatExitedIsNotWaitedFor) {
  exited_[0] = exited_[2] = true;
  std::thread other([&] {
    const auto rank = Rank(1, 4);
    EXPECT_THAT(rank->AgreeOnMembers(0, Late()),
                IsOkAndHolds(ElementsAre(1, 3)));
    EXPECT_THAT(rank->AgreeOnOutcome(true, Late()), IsOkAndHolds(true));
  });
  const auto rank = Rank(3, 4);
  EXPECT_THAT(rank->AgreeOnMembers(std::nullopt, Late()),
              IsOkAndHolds(ElementsAre(1, 3)));
  EXPECT_THAT(rank->AgreeOnOutcome(true, Late()), IsOkAndHolds(true));
  other.join();
}

TEST_F(SurvivorsTest, ARankThatArrivesAfterTheDecisionLearnsThatItIsExcluded) {
  EXPECT_THAT(Rank(0, 2)->AgreeOnMembers(std::nullopt, Soon()),
              IsOkAndHolds(ElementsAre(0)));
  EXPECT_THAT(Rank(1, 2)->AgreeOnMembers(std::nullopt, Late()),
              IsOkAndHolds(ElementsAre(0)));
}

TEST_F(SurvivorsTest, TheRankThatMostSuspectIsExcludedThoughItCalls) {
  testing::RunRankThreads(4, [this](int r) {
    // Rank 2 timed out, and names rank 0 as the rank that gave up.
    EXPECT_THAT(Rank(r, 4)->AgreeOnMembers(r == 2 ? 0 : 2, Late()),
                IsOkAndHolds(ElementsAre(0, 1, 3)));
  });
}

TEST_F(SurvivorsTest, TwoRanksThatSuspectEachOtherBothStay) {
  std::thread other([this] {
    EXPECT_THAT(Rank(1, 2)->AgreeOnMembers(0, Late()),
                IsOkAndHolds(ElementsAre(0, 1)));
  });
  EXPECT_THAT(Rank(0, 2)->AgreeOnMembers(1, Late()),
              IsOkAndHolds(ElementsAre(0, 1)));
  other.join();
}

TEST_F(SurvivorsTest, AStoppedOrSuspectedRankIsAwaitedOnlyBriefly) {
  stopped_[1] = true;
  EXPECT_THAT(Rank(0, 3)->AgreeOnMembers(2, Late()),
              IsOkAndHolds(ElementsAre(0)));
}

TEST_F(SurvivorsTest, ARoundThatFailedIsFollowedByOneOfItsMembers) {
  exited_[3] = true;
  std::thread other([this] {
    const auto rank = Rank(1, 4);
    EXPECT_THAT(rank->AgreeOnMembers(3, Late()),
                IsOkAndHolds(ElementsAre(0, 1, 2)));
    EXPECT_THAT(rank->AgreeOnOutcome(true, Late()), IsOkAndHolds(false));
    EXPECT_EQ(rank->round(), 2);
    EXPECT_THAT(rank->AgreeOnMembers(2, Late()),
                IsOkAndHolds(ElementsAre(0, 1)));
    EXPECT_THAT(rank->AgreeOnOutcome(true, Late()), IsOkAndHolds(true));
  });
  std::thread dying([this] {
    EXPECT_THAT(Rank(2, 4)->AgreeOnMembers(3, Late()),
                IsOkAndHolds(ElementsAre(0, 1, 2)));
    exited_[2] = true;
  });
  const auto rank = Rank(0, 4);
  EXPECT_THAT(rank->AgreeOnMembers(3, Late()),
              IsOkAndHolds(ElementsAre(0, 1, 2)));
  EXPECT_THAT(rank->AgreeOnOutcome(false, Late()), IsOkAndHolds(false));
  EXPECT_THAT(rank->AgreeOnMembers(std::nullopt, Late()),
              IsOkAndHolds(ElementsAre(0, 1)));
  EXPECT_THAT(rank->AgreeOnOutcome(true, Late()), IsOkAndHolds(true));
  other.join();
  dying.join();
}

TEST_F(SurvivorsTest, AMemberThatDoesNotConcludeInTimeEndsTheRound) {
  std::thread other([this] {
    EXPECT_THAT(Rank(1, 2)->AgreeOnMembers(std::nullopt, Late()), IsOk());
  });
  const auto rank = Rank(0, 2);
  EXPECT_THAT(rank->AgreeOnMembers(std::nullopt, Late()), IsOk());
  EXPECT_THAT(rank->AgreeOnOutcome(true, Soon()), IsOkAndHolds(false));
  other.join();
}

TEST_F(SurvivorsTest, AnInvalidListIsAnError) {
  ASSERT_THAT(store_.Set("shrink/1/members", "0,7"), IsOk());
  EXPECT_THAT(Rank(0, 2)->AgreeOnMembers(std::nullopt, Late()),
              StatusIs(absl::StatusCode::kInternal, "\"0,7\""));
}

// After so many operations of the store the thread is a process that ended.
thread_local int operations_left = -1;

absl::Status CountOperation(const FaultPassage&) {
  if (operations_left == 0) return absl::CancelledError("this rank has ended");
  if (operations_left > 0) --operations_left;
  return absl::OkStatus();
}

// The final members of a rank that continued; unset if it ended or was
// excluded.
std::optional<std::vector<int>> Shrink(SurvivorAgreement& rank, int own,
                                       std::optional<int> suspect) {
  const Deadline deadline = Deadline::After(absl::Minutes(5));
  for (;;) {
    const auto members = rank.AgreeOnMembers(suspect, deadline);
    if (!members.ok() || std::count(members->begin(), members->end(), own) == 0)
      return std::nullopt;
    const auto outcome = rank.AgreeOnOutcome(true, deadline);
    if (!outcome.ok()) return std::nullopt;
    if (*outcome) return *members;
  }
}

TEST_F(SurvivorsTest, AnyRankMayEndAtAnyPointAndTheRestAgree) {
  const uint64_t seed = static_cast<uint64_t>(
      GetIntKnob(Knob::kTestSeed, 0, INT64_MAX)
          .value()
          .value_or(static_cast<int64_t>(std::random_device()())));
  std::cout << "SHERD_TEST_SEED=" << seed << "\n";
  std::mt19937_64 random(seed);
  SetFaultHandler(CountOperation);
  for (int c = 0; c < 150; ++c) {
    SCOPED_TRACE(absl::StrCat("case ", c, " of seed ", seed));
    ASSERT_THAT(store_.DeletePrefix("shrink"), IsOk());
    const int size = 2 + static_cast<int>(random() % (kMostRanks - 1));
    std::vector<int> lives(size, -1);
    for (int r = 0; r + 1 < size; ++r) {
      exited_[r] = false;
      if (random() % 2 == 0) lives[r] = static_cast<int>(random() % 60);
    }
    std::shuffle(lives.begin(), lives.end(), random);
    // Errors name only ranks that end.
    std::vector<int> ends;
    for (int r = 0; r < size; ++r) {
      exited_[r] = false;
      if (lives[r] >= 0) ends.push_back(r);
    }
    std::vector<std::optional<int>> suspect(size);
    for (auto& one : suspect) {
      if (!ends.empty() && random() % 2 == 0) {
        one = ends[random() % ends.size()];
      }
    }
    std::vector<std::optional<std::vector<int>>> results(size);
    testing::RunRankThreads(size, [&](int r) {
      operations_left = lives[r];
      const auto rank = Rank(r, size);
      results[r] = Shrink(*rank, r, suspect[r]);
      if (!results[r]) exited_[r] = true;
    });
    std::set<std::vector<int>> different;
    for (int r = 0; r < size; ++r) {
      if (lives[r] < 0) {
        ASSERT_TRUE(results[r]) << "rank " << r << " did not go on";
      }
      if (!results[r]) continue;
      different.insert(*results[r]);
    }
    ASSERT_EQ(different.size(), 1u);
    for (int r = 0; r < size; ++r) {
      if (lives[r] >= 0) continue;
      EXPECT_EQ(
          std::count(different.begin()->begin(), different.begin()->end(), r),
          1);
    }
  }
  SetFaultHandler(nullptr);
}

}  // namespace
}  // namespace sherd::internal
