#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/kits/random_moves.h"
#include "sherd/testing/random_layouts.h"

// Random layouts on ranks that are processes, on every backend.

namespace sherd {
namespace {

using ::sherd::testing::CaseCount;
using ::sherd::testing::RandomSeed;
using ::sherd::testing::RunRandomMoves;
using ::sherd::testing::SameOnAllRanks;

class AnyLayoutProcessTest : public sherd::testing::DistributedTest {
 protected:
  void Run(bool messages_only) {
    RunRandomMoves(shared_group(),
                   {.seed = SameOnAllRanks(group(), RandomSeed()),
                    .cases = CaseCount(40),
                    .messages_only = messages_only});
  }
};

SHERD_DIST_TEST_F(AnyLayoutProcessTest, HoldsTheSameElementsAfterEveryMove) {
  Run(/*messages_only=*/false);
}

// Where ranks reach each other's memory, that was the other strategy.
SHERD_DIST_TEST_F(AnyLayoutProcessTest, HoldsTheSameElementsAfterMessages) {
  Run(/*messages_only=*/true);
}

}  // namespace
}  // namespace sherd
