// All possible sequences of events in small worlds, and many in larger ones.
// Messages overtake one another throughout: worlds in which they do not are
// among these.

#include <cstdint>
#include <iostream>
#include <string>

#include "gtest/gtest.h"
#include "sherd/rpc/ownership/ownership_world.h"
#include "sherd/testing/random_layouts.h"

namespace sherd::internal {
namespace {

using Limits = OwnershipWorld::Limits;

void ExpectAllRight(const Limits& limits) {
  const Exploration found = ExploreAll(limits);
  EXPECT_EQ(found.wrong, "");
  // At rest before the first event, and after the last.
  EXPECT_GE(found.at_rest, 2);
  std::cout << found.worlds << " worlds, " << found.at_rest << " at rest\n";
}

TEST(OwnershipModelTest, AValueLivesExactlyAsLongAsItsHandles) {
  ExpectAllRight(
      {.workers = 3, .creations = {{0, 1}}, .passes = 3, .reorders = true});
}

TEST(OwnershipModelTest, AWorkerHoldsItsOwnValuesAsOthersDo) {
  ExpectAllRight({.workers = 2,
                  .creations = {{0, 0}},
                  .passes = 3,
                  .reorders = true,
                  .deaths = 1});
}

TEST(OwnershipModelTest, AMessageWithTwoReferencesWaitsForBoth) {
  ExpectAllRight({.workers = 3,
                  .creations = {{0, 1}, {0, 2}},
                  .passes = 1,
                  .pairs = true,
                  .reorders = true});
}

TEST(OwnershipModelTest, DuplicateAndLateMessagesDoNoHarm) {
  ExpectAllRight({.workers = 3,
                  .creations = {{0, 1}},
                  .passes = 2,
                  .reorders = true,
                  .duplicates = 1});
  ExpectAllRight({.workers = 2,
                  .creations = {{0, 1}},
                  .passes = 2,
                  .reorders = true,
                  .duplicates = 2});
}

TEST(OwnershipModelTest, WorkersDieAtAnyPoint) {
  ExpectAllRight({.workers = 3,
                  .creations = {{0, 1}},
                  .passes = 2,
                  .reorders = true,
                  .deaths = 2});
}

TEST(OwnershipModelTest, WorkersLoseEachOtherAtAnyPoint) {
  ExpectAllRight({.workers = 3,
                  .creations = {{0, 1}},
                  .passes = 2,
                  .reorders = true,
                  .cuts = 1});
}

TEST(OwnershipModelTest, TransfersAreAbandonedAtAnyPoint) {
  ExpectAllRight({.workers = 3,
                  .creations = {{0, 1}},
                  .passes = 2,
                  .reorders = true,
                  .abandons = 2});
}

TEST(OwnershipModelTest, WorkersReleaseEverythingAtAnyPoint) {
  ExpectAllRight({.workers = 3,
                  .creations = {{0, 1}},
                  .passes = 2,
                  .reorders = true,
                  .releases_of_all = 2});
}

TEST(OwnershipModelTest, LargerWorldsAtRandom) {
  const uint64_t seed = sherd::testing::RandomSeed();
  const int64_t count = sherd::testing::CaseCount(200);
  size_t worlds = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t story = seed + static_cast<uint64_t>(i);
    const Exploration found =
        ExploreAtRandom({.workers = 5,
                         .creations = {{0, 1}, {0, 2}, {1, 1}, {2, 0}},
                         .passes = 40,
                         .pairs = true,
                         .reorders = true,
                         .duplicates = 8,
                         .deaths = static_cast<int>(story % 3),
                         .cuts = static_cast<int>(story % 2),
                         .abandons = 4,
                         .releases_of_all = static_cast<int>(story % 4 / 3)},
                        story);
    ASSERT_EQ(found.wrong, "")
        << "SHERD_TEST_SEED=" << story << " SHERD_TEST_CASES=1";
    worlds += found.worlds;
  }
  std::cout << worlds << " worlds\n";
}

}  // namespace
}  // namespace sherd::internal
