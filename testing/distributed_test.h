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
// parent process as well, so they must start nothing that ranks must not share.
//
// Results. A failed expectation on any rank fails the test and is reported
// once, with its rank and its place; a rank that ends without returning from
// main() fails it too, and soon ends the others. Skips must be unanimous. The
// ranks' output is shown if the test fails.
//
// A process that a body forks is not a rank: its expectations do not count, and
// it ends with the body at the latest. Death tests in a body are such
// processes; they must be of GoogleTest's style "fast".
//
// If the user started the program as the ranks of a job (with mpirun, srun,
// torchrun), these are the ranks; see external_ranks.h.
class DistributedTest : public DistributedFixture {
 protected:
  DistributedTest();

  // How long the other ranks may continue, to report their errors, once one
  // rank has failed, skipped or ended abnormally.
  virtual absl::Duration grace() const { return absl::Seconds(3); }

  std::string temp_dir() const override;

  // "file:///…", where the ranks of this test meet.
  std::string init_method() const;

  // Announces that `signal` will end `rank`. Called on the ranks (on all or
  // some, by `rank` itself at the latest). This end is not a failure and does
  // not stop the others; a rank that does not end so fails the test. The final
  // barrier is left out.
  void ExpectRankDies(int rank, int signal);

  // Announces that a StopRankAt will stop `rank`, which then neither ends nor
  // goes on. Called on all ranks, which are on one host; the others call
  // EndFrozenRank once they have seen what they expect of it, and one of them
  // ends its process by SIGKILL, when all of them have.
  void ExpectRankFreezes(int rank);
  void EndFrozenRank(int rank);

  void RunDistributed(const internal::TestPlan& plan,
                      const internal::FixtureFactory& make) override;

  internal::CommsPlace place() const override;
  std::shared_ptr<Store> OpenStore() const override;
  void EnterPhase(absl::string_view phase) override;
  void OnBodyEnd() override;
  bool HasFailedOrSkipped() const override;

 private:
  friend class PersistentDistributedTest;

  // Ends a process that GoogleTest starts in a body for a death test of style
  // "threadsafe": it would not reach the statement but start ranks, which would
  // start such processes in turn.
  static void RefuseDeathTest();
  // Skips or fails the test, or runs it on new ranks.
  void RunAsParent(const internal::TestPlan& plan);
  // The launcher of the ranks; empty: the harness starts them itself.
  static std::string LauncherName(const internal::CommsPlan& comms);
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_DISTRIBUTED_TEST_H_
