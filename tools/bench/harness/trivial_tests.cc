// Tests of nothing, 200 of each kind, for what a kind of test costs by itself.
// Run by bench, and by hand: trivial_tests --gtest_filter='*Persistent*'.

#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/threaded_test.h"

namespace sherd::testing {
namespace {

constexpr int kTests = 200;

class PlainTest : public ::testing::TestWithParam<int> {};
TEST_P(PlainTest, Nothing) {}
INSTANTIATE_TEST_SUITE_P(Trivial, PlainTest, ::testing::Range(0, kTests));

class SpawnedTest : public DistributedTest,
                    public ::testing::WithParamInterface<int> {};
SHERD_DIST_TEST_P(SpawnedTest, Nothing) {}
INSTANTIATE_TEST_SUITE_P(Trivial, SpawnedTest, ::testing::Range(0, kTests));

class PersistentTest : public PersistentDistributedTest,
                       public ::testing::WithParamInterface<int> {};
SHERD_DIST_TEST_P(PersistentTest, Nothing) {}
INSTANTIATE_TEST_SUITE_P(Trivial, PersistentTest, ::testing::Range(0, kTests));

class ThreadedTest : public ThreadedDistributedTest,
                     public ::testing::WithParamInterface<int> {};
SHERD_DIST_TEST_P(ThreadedTest, Nothing) {}
INSTANTIATE_TEST_SUITE_P(Trivial, ThreadedTest, ::testing::Range(0, kTests));

}  // namespace
}  // namespace sherd::testing
