#ifndef SHERD_TESTING_EXTERNAL_RANKS_H_
#define SHERD_TESTING_EXTERNAL_RANKS_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/launch_environment.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/comm/store_life.h"
#include "sherd/testing/distributed_fixture.h"
#include "sherd/testing/rank_results.h"
#include "sherd/testing/run_outcome.h"

namespace sherd::testing::internal {

// A test program whose user started it once per rank: with mpirun, srun,
// torchrun, sherd run. Each process is then a rank from beginning to end, all
// run the same tests in the same order, and nothing is spawned.
//
// Rank 0 alone speaks: after each test the others hand it what they recorded,
// through a store of the job, and it judges and reports as a parent process
// does. They print nothing, write no XML, and end with rank 0's exit code.
// Tests that do not run on several ranks run on rank 0.
//
// Nobody waits without bound: for a rank whose process is gone, as seen on its
// own host, not at all; otherwise until the test's timeout. A rank that is lost
// fails the test and all later ones that need it.
//
// It takes its place before main(), like RankReporter.
class ExternalRanks {
 public:
  // Of this process; null unless a launcher says that there are several ranks
  // (or SHERD_TEST_EXTERNAL=1 and there is one), and it is no rank that this
  // harness started. Never with SHERD_TEST_EXTERNAL=0.
  static ExternalRanks* Get();

  // Of the job.
  int rank() const { return place_.rank; }
  int world_size() const { return place_.world_size; }

  // A test while this process takes part in it.
  struct Test {
    int rank;
    int world_size;
    // Of the test.
    std::shared_ptr<Store> store;
    std::string temp_dir;
    absl::Duration timeout;
    RankResults* results;
  };
  // Null outside of Run and on ranks that the test does not need.
  const Test* test() const { return test_ ? &*test_ : nullptr; }

  // For constructors of fixtures: the rank for which a factory makes one, -1 if
  // GoogleTest makes it.
  static int RankBeingMade();

  // Carries the running test out on the first `world_size` ranks of the job,
  // each in an object of `make`; `check` skips or fails it before, on rank 0
  // only. Skipped with kSmallWorldSize if the job has fewer ranks.
  //
  // Collective over all ranks of the job.
  void Run(const TestPlan& plan, int world_size, absl::Duration timeout,
           const std::function<void()>& check, const FixtureFactory& make);

  // Announces within Run that `rank` is going to be ended by `signal`; in
  // truth only that it ends is seen.
  void ExpectDeath(int rank, int signal);

 private:
  friend class ExternalListener;
  friend class ExternalEndListener;

  // What rank 0 says of a test before it begins.
  struct Opening;

  explicit ExternalRanks(LaunchEnvironment place) : place_(std::move(place)) {}
  static ExternalRanks* Install();

  absl::Status Connect(const ::testing::UnitTest& tests);
  absl::Status CompareRanks(const std::string& own, Deadline deadline);
  void EndIteration(const ::testing::UnitTest& tests);
  void EndProgram();

  // The value of `key`, which `peer` sets.
  //   kUnavailable       The process of `peer` is gone.
  //   kDeadlineExceeded  It did not come.
  absl::StatusOr<std::string> Await(const std::string& key, int peer,
                                    Deadline deadline);
  // Tells the others. Errors show in what they do not get.
  void Tell(const std::string& key, absl::string_view value);

  void RunAsFirst(const TestPlan& plan, int size, absl::Duration timeout,
                  const std::function<void()>& check,
                  const FixtureFactory& make);
  void RunAsOther(const TestPlan& plan, int size, absl::Duration timeout,
                  const FixtureFactory& make);
  void Refuse(const TestPlan& plan, int size,
              const std::function<void()>& check);
  RunOutcome RunAndCollect(const TestPlan& plan, int size,
                           absl::Duration timeout, const std::string& directory,
                           const FixtureFactory& make);
  void TakePart(const TestPlan& plan, RankResults& results,
                const FixtureFactory& make);
  RankOutcome OutcomeOf(int rank, Deadline deadline);
  std::map<int, int> ExpectedDeaths(int size);
  std::string WhoIsLost(int size) const;
  // Rank 0 cannot be asked any more.
  void LoseRankZero(const absl::Status& why, const RankResults* results);

  const LaunchEnvironment place_;
  std::shared_ptr<::sherd::internal::StoreLife> life_;
  std::shared_ptr<Store> store_;
  // Where each rank runs, as DescribeOwnProcess() says.
  std::vector<std::string> processes_;
  // Tests and iterations that have begun.
  int tests_ = 0;
  int iterations_ = 0;
  std::optional<Test> test_;
  // Rank: in which test it was lost. On rank 0.
  std::map<int, std::string> lost_;
  bool lost_rank_zero_ = false;
  // Ranks but 0: failures outside of distributed tests.
  std::vector<ResultFrame> strays_;
  bool is_telling_ = false;
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_EXTERNAL_RANKS_H_
