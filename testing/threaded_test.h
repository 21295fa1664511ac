#ifndef SHERD_TESTING_THREADED_TEST_H_
#define SHERD_TESTING_THREADED_TEST_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/comm/store.h"
#include "sherd/testing/fixtures/distributed_fixture.h"

namespace sherd::testing {

namespace internal {
class ThreadedRun;
}  // namespace internal

// Base of fixtures whose ranks are threads of the test program, over the
// backend "local": thousands of tests per second, all ranks in one debugger,
// and sanitizers that see them all. Use DistributedTest for tests that need
// processes: a rank that dies, a wrong program, another backend.
//
//   class PlanTest : public sherd::testing::ThreadedDistributedTest {
//    protected:
//     int world_size() const override { return 4; }
//   };
//
//   SHERD_DIST_TEST_F(PlanTest, RowsToColumns) { … group() is up … }
//
// Each rank has a fixture object of its own, made and destroyed on the main
// thread, its own default group and default generator, and its rank in log
// lines. Ranks share everything else: globals, environment, working directory.
//
// Results. A failed expectation is reported with the rank of its thread; on a
// thread that the body started, without a rank. ASSERT_* ends its rank only,
// and so does an exception, which is a failure; after a failed SetUp the body
// does not run. Skips must be unanimous.
//
// Nothing hangs. A rank that has failed or skipped leaves the group, so that
// the others get errors that name it; after grace() their groups are aborted,
// and waits for store() end. At timeout() the stacks of all threads are
// written; if a rank still does not return, the test program ends with a
// message, because a thread cannot be killed.
//
// Threads are kept from test to test, with the values of their thread_local
// variables. Groups, stores and generators are new in each test.
class ThreadedDistributedTest : public DistributedFixture {
 protected:
  ThreadedDistributedTest();

  // How long the other ranks may continue, to report their errors, once one
  // rank has failed or skipped.
  virtual absl::Duration grace() const { return absl::Seconds(3); }

  // store(), for Init({.store = shared_store()}) in a body WithoutComms{}.
  std::shared_ptr<Store> shared_store();

  std::string temp_dir() const override;

  void RunDistributed(const internal::TestPlan& plan,
                      const internal::FixtureFactory& make) override;

 private:
  friend class internal::ThreadedRun;

  internal::CommsPlace place() const override;
  std::shared_ptr<Store> OpenStore() const override;
  void EnterPhase(absl::string_view phase) override;
  void OnBodyEnd() override;
  absl::StatusOr<std::shared_ptr<internal::Comms>> AcquireComms(
      const WithComms& wanted) override;
  absl::Status ReleaseComms(std::shared_ptr<internal::Comms> comms,
                            internal::Leaving leaving) override;

  // Null outside of ranks.
  internal::ThreadedRun* const run_;
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_THREADED_TEST_H_
