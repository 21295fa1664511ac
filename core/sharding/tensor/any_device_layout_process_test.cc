#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/kits/random_moves.h"
#include "sherd/testing/placed_fixture.h"
#include "sherd/testing/random_layouts.h"

// Random layouts over the devices of ranks that are processes, and over host
// memory.

namespace sherd {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::RandomMovesOptions;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::RunRandomMoves;
using ::sherd::testing::SameOnAllRanks;

class AnyDeviceLayoutProcessTest
    : public sherd::testing::PlacedFixture<sherd::testing::DistributedTest> {};

SHERD_DIST_TEST_F(AnyDeviceLayoutProcessTest,
                  HoldsTheSameElementsAfterEveryMove) {
  RandomMovesOptions options = {.seed = SameOnAllRanks(group(), RandomSeed()),
                                .cases = CaseCount(60)};
  for (int r = 0; r < world_size(); ++r) {
    options.devices.push_back({DeviceOf(r), DeviceOf(r + 1)});
  }
  RunRandomMoves(shared_group(), options);
}

}  // namespace
}  // namespace sherd
