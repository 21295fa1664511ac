// The exhaustive tests of ownership_model_test.cc once more, one or two events
// longer: millions of worlds.

#include <iostream>

#include "gtest/gtest.h"
#include "sherd/rpc/ownership/ownership_world.h"

namespace sherd::internal {
namespace {

class OwnershipModelDeepTest
    : public testing::TestWithParam<OwnershipWorld::Limits> {};

TEST_P(OwnershipModelDeepTest, ValuesLiveExactlyAsLongAsTheirHandles) {
  const Exploration found = ExploreAll(GetParam());
  EXPECT_EQ(found.wrong, "");
  EXPECT_GE(found.at_rest, 2);
  std::cout << found.worlds << " worlds, " << found.at_rest << " at rest\n";
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, OwnershipModelDeepTest,
    testing::Values(OwnershipWorld::Limits{.workers = 3,
                                           .creations = {{0, 1}},
                                           .passes = 4,
                                           .reorders = true},
                    OwnershipWorld::Limits{.workers = 3,
                                           .creations = {{0, 1}},
                                           .passes = 3,
                                           .reorders = true,
                                           .duplicates = 1},
                    OwnershipWorld::Limits{.workers = 3,
                                           .creations = {{0, 1}},
                                           .passes = 3,
                                           .reorders = true,
                                           .deaths = 2},
                    OwnershipWorld::Limits{.workers = 3,
                                           .creations = {{0, 1}},
                                           .passes = 2,
                                           .reorders = true,
                                           .duplicates = 1,
                                           .deaths = 1,
                                           .cuts = 1,
                                           .abandons = 1,
                                           .releases_of_all = 1},
                    OwnershipWorld::Limits{.workers = 3,
                                           .creations = {{0, 1}, {2, 0}},
                                           .passes = 2,
                                           .pairs = true,
                                           .reorders = true},
                    OwnershipWorld::Limits{.workers = 2,
                                           .creations = {{0, 1}, {1, 1}},
                                           .passes = 2,
                                           .pairs = true,
                                           .reorders = true,
                                           .deaths = 1,
                                           .releases_of_all = 1}));

}  // namespace
}  // namespace sherd::internal
