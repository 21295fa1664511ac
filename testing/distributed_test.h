#ifndef SHERD_TESTING_DISTRIBUTED_TEST_H_
#define SHERD_TESTING_DISTRIBUTED_TEST_H_

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/comm/store.h"
#include "sherd/testing/fixtures/distributed_fixture.h"

namespace sherd::testing {

// Base of fixtures whose tests run on several ranks, each a process of its own.
//
//   class ReshardTest : public sherd::testing::DistributedTest {
//    protected:
//     int world_size() const override { return 4; }
//   };
//
//   SHERD_DIST_TEST_F(ReshardTest, RowsToColumns) { … group() is up … }
//
// The process that runs the tests starts its own program again once per rank,
// for this one test. SetUp, the body and TearDown run on the ranks only; the
// constructor, SetUpTestSuite and TEST_F tests of the same fixture run in the
// parent process as well, so they start nothing that ranks must not share.
//
// Results. A failed expectation on any rank fails the test and is reported
// once, with its rank and its place; ranks that end in any other way than
// through main() fail it too, and soon end the others. Skips must be
// unanimous. Output of ranks is shown if the test fails.
//
// A process that a body forks is no rank: nothing that it expects counts, and
// it ends at the latest where the body does. Death tests in a body are such
// processes; they must be of GoogleTest's style "fast".
//
// Where the user has started the program as the ranks of a job (with mpirun,
// srun, torchrun), these are the ranks; see external_ranks.h.
class DistributedTest : public DistributedFixture {
 protected:
  DistributedTest();

  // How long the other ranks may go on, to report what they see, once one has
  // failed, skipped or ended abnormally.
  virtual absl::Duration grace() const { return absl::Seconds(3); }

  std::string temp_dir() const override;

  // "file:///…", where the ranks of this test meet.
  std::string init_method() const;

  // Announces that `rank` is going to be ended by `signal`. Called on the ranks
  // (on all or some, at the latest by `rank` itself). Such an end is no failure
  // and does not stop the others, but not to end so is a failure. The final
  // barrier is left out.
  void ExpectRankDies(int rank, int signal);

  void RunDistributed(const internal::TestPlan& plan,
                      const internal::FixtureFactory& make) override;

  internal::CommsPlace place() const override;
  std::shared_ptr<Store> OpenStore() const override;
  void EnterPhase(absl::string_view phase) override;
  void OnBodyEnd() override;
  bool HasFailedOrSkipped() const override;

 private:
  friend class PersistentDistributedTest;

  // Ends a process that GoogleTest starts for a death test of style
  // "threadsafe" in a body: instead of to the statement it would come to ranks
  // that start such processes in their turn.
  static void RefuseDeathTest();
  // Skips or fails the test, or runs it on new ranks.
  void RunAsParent(const internal::TestPlan& plan);
  // What has to start the ranks; empty: the harness itself.
  static std::string LauncherName(const internal::CommsPlan& comms);
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_DISTRIBUTED_TEST_H_
