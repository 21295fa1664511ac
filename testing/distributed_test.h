#ifndef SHERD_TESTING_DISTRIBUTED_TEST_H_
#define SHERD_TESTING_DISTRIBUTED_TEST_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/exit_codes.h"
#include "sherd/testing/rank_reporter.h"

namespace sherd::testing {

// The communication that a test body finds set up. Order: device check, RPC,
// process group, body, barrier, RPC shutdown, destruction of the group.
struct WithComms {
  // Empty: the backend of the Bazel target (SHERD_TEST_BACKEND), "gloo"
  // outside of one.
  std::string backend;
  // Starts RPC too. No RPC is part of Sherd yet: such a test is skipped.
  bool init_rpc = false;
  // Of the group and its collectives; at most three quarters of the test's, so
  // that the ranks still report who did not come.
  absl::Duration timeout = absl::Seconds(60);
};

// No communication: the body calls Init itself, or needs none. RANK,
// WORLD_SIZE and SHERD_INIT_METHOD are set, so Init({}) works.
struct WithoutComms {};

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
// After a failed or skipped body the communication is torn down without the
// barrier, so that an ASSERT on one rank does not hang the others.
class DistributedTest : public ::testing::Test {
 protected:
  // Number of ranks, 1 to 256. SHERD_TEST_WORLD_SIZE (set by
  // sherd_distributed_test), otherwise 4. Constant during a test.
  virtual int world_size() const;

  // How long the test may take before all ranks write their stacks and are
  // ended. By default what is left of TEST_TIMEOUT, less a margin for the
  // report.
  virtual absl::Duration timeout() const;

  // How long the other ranks may go on, to report what they see, once one has
  // failed, skipped or ended abnormally.
  virtual absl::Duration grace() const { return absl::Seconds(3); }

  // This process's rank, in [0, world_size()); -1 in the parent.
  int rank() const { return rank_; }
  bool IsRank() const { return rank_ >= 0; }

  // The default group. Only in a body with communication.
  ProcessGroup& group();
  std::shared_ptr<ProcessGroup> shared_group() { return group_; }

  // A directory of this test, empty at its start, shared by its ranks and
  // removed after it.
  std::string temp_dir() const;

  // "file:///…", where the ranks of this test meet.
  std::string init_method() const;

  // Announces that `rank` is going to be ended by `signal`. Called on the ranks
  // (on all or some, at the latest by `rank` itself). Such an end is no failure
  // and does not stop the others, but not to end so is a failure. The final
  // barrier is left out.
  void ExpectRankDies(int rank, int signal);

  // Says that this rank leaves the group without waiting for the others.
  void SkipFinalBarrier() { final_barrier_ = false; }

  DistributedTest();

  // What SHERD_DIST_TEST_F puts into the body of its tests.
  struct Location {
    const char* file;
    int line;
  };
  void RunDistributed(const std::optional<WithComms>& comms,
                      const std::function<void()>& body, Location location);

 private:
  void RunAsRank(const std::optional<WithComms>& comms,
                 const std::function<void()>& body);
  void RunAsParent(const std::optional<WithComms>& comms, Location location);
  void SetUpComms(const WithComms& comms);
  void TearDownComms();

  const int rank_;
  bool final_barrier_ = true;
  std::shared_ptr<ProcessGroup> group_;
};

namespace internal {

inline std::optional<WithComms> ToComms() { return WithComms(); }
inline std::optional<WithComms> ToComms(WithComms comms) { return comms; }
inline std::optional<WithComms> ToComms(WithoutComms) { return std::nullopt; }

}  // namespace internal
}  // namespace sherd::testing

// Skips the test with a reason of the table in exit_codes.h, whose text and
// exit code it carries; more text may follow with <<. Every rank must come to
// the same decision.
#define SHERD_SKIP(reason) \
  GTEST_SKIP() << ::sherd::testing::internal::AnnounceSkip(reason) << " "

// Defines a test that runs on fixture::world_size() ranks:
//
//   SHERD_DIST_TEST_F(Fixture, Name) { … }
//   SHERD_DIST_TEST_F(Fixture, Name, (WithComms{.backend = "gloo"})) { … }
//   SHERD_DIST_TEST_F(Fixture, Name, WithoutComms{}) { … }
//
// The first form is the second with WithComms{}.
#define SHERD_DIST_TEST_F(fixture, name, ...)                            \
  class fixture##_##name##_DistTest : public fixture {                   \
   protected:                                                            \
    void SetUp() override {                                              \
      if (IsRank()) fixture::SetUp();                                    \
    }                                                                    \
    void TearDown() override {                                           \
      if (IsRank()) fixture::TearDown();                                 \
    }                                                                    \
                                                                         \
   private:                                                              \
    void TestBody() override {                                           \
      RunDistributed(::sherd::testing::internal::ToComms(__VA_ARGS__),   \
                     [this] { RankBody(); }, {__FILE__, __LINE__});      \
    }                                                                    \
    void RankBody();                                                     \
  };                                                                     \
  [[maybe_unused]] static const ::testing::TestInfo* const               \
      fixture##_##name##_registered = ::testing::RegisterTest(           \
          #fixture, #name, nullptr, nullptr, __FILE__, __LINE__,         \
          []() -> fixture* { return new fixture##_##name##_DistTest; }); \
  void fixture##_##name##_DistTest::RankBody()

#endif  // SHERD_TESTING_DISTRIBUTED_TEST_H_
