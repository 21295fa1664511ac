#ifndef SHERD_TESTING_PERSISTENT_TEST_H_
#define SHERD_TESTING_PERSISTENT_TEST_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/testing/distributed_test.h"

namespace sherd::testing {

// A DistributedTest whose ranks start once per test suite and run test after
// test, for suites of many short tests: a test costs a few messages, not the
// start of processes and of a process group.
//
//   class AddressTest : public sherd::testing::PersistentDistributedTest {};
//
//   SHERD_DIST_TEST_F(AddressTest, EveryRankHasItsOwn) { … group() is up … }
//
// Ranks. One set for each world size in the suite. A set is replaced after a
// test that did not pass on all of its ranks, that expected a rank to die, or
// that left the group out of step. On each rank SetUpTestSuite and
// TearDownTestSuite run once, around the tests that it runs, and static
// variables keep their values.
//
// Between tests the process group stays up, with a barrier after each body. It
// is recreated if a test wants another WithComms than the one before, has
// destroyed the group, or has remote access. temp_dir() and store() belong to
// one test and are empty at its start.
//
// At the end of the suite the ranks return from main(); a rank that does not
// fails the suite. Ranks may also construct the fixtures of tests that they do
// not run.
//
// If a launcher starts the ranks, each test has new ones.
class PersistentDistributedTest : public DistributedTest {
 protected:
  void RunDistributed(const internal::TestPlan& plan,
                      const internal::FixtureFactory& make) override;
  absl::StatusOr<std::shared_ptr<internal::Comms>> AcquireComms(
      const WithComms& wanted) override;
  absl::Status ReleaseComms(std::shared_ptr<internal::Comms> comms,
                            internal::Leaving leaving) override;

 private:
  void RunOnSuiteRanks(const internal::TestPlan& plan);
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_PERSISTENT_TEST_H_
