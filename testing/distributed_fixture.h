#ifndef SHERD_TESTING_DISTRIBUTED_FIXTURE_H_
#define SHERD_TESTING_DISTRIBUTED_FIXTURE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/comm/store.h"
#include "sherd/testing/announced_skip.h"
#include "sherd/testing/comms.h"
#include "sherd/testing/distributed_tests.h"
#include "sherd/testing/requirements.h"

namespace sherd::testing {

class DistributedFixture;

namespace internal {

inline constexpr int kMaxTestRanks = 256;

// What a macro says of one test.
struct TestPlan {
  // Unset: WithoutComms.
  std::optional<WithComms> comms = WithComms();
  std::vector<Requirement> requirements;
  const char* file = "";
  int line = 0;
};

inline void AddToPlan(TestPlan& plan, WithComms comms) {
  plan.comms = std::move(comms);
}
inline void AddToPlan(TestPlan& plan, WithoutComms) {
  plan.comms = std::nullopt;
}
inline void AddToPlan(TestPlan& plan, Requirement requirement) {
  plan.requirements.push_back(std::move(requirement));
}

// From the arguments of a macro behind the name of the test.
template <typename... Arguments>
TestPlan MakePlan(const char* file, int line, Arguments... arguments) {
  TestPlan plan;
  plan.file = file;
  plan.line = line;
  (AddToPlan(plan, std::move(arguments)), ...);
  return plan;
}

using FixtureFactory = std::function<std::unique_ptr<DistributedFixture>()>;

// What is left of TEST_TIMEOUT.
absl::Duration TimeToTimeout();

// The same, less the time for a report.
absl::Duration TimeLeft();

// How to carry out one rank's part of a test on an object that is not
// GoogleTest's: SetUp, Run unless that failed or skipped, TearDown.
struct RankSteps {
  static void SetUp(DistributedFixture& fixture);
  static void Run(DistributedFixture& fixture, const TestPlan& plan);
  static void TearDown(DistributedFixture& fixture);
};

}  // namespace internal

// What all fixtures have in common whose tests run on several ranks. Derive
// from one that says what a rank is:
//   DistributedTest            a process, new for each test
//   PersistentDistributedTest  a process that goes on from test to test
//   ThreadedDistributedTest    a thread of the test program
//
// SetUp, body and TearDown run on the ranks only, each with a fixture object
// of its own. Order on a rank: SetUp, communication, body, communication's end,
// TearDown.
//
// After a failed or skipped body the communication is torn down without the
// barrier, so that an ASSERT on one rank does not hang the others.
class DistributedFixture : public ::testing::Test {
 public:
  // As in ::testing::Test, but of this rank: where ranks are threads or were
  // started from outside, GoogleTest itself learns of their failures only when
  // the test has ended.
  static bool HasFatalFailure();
  static bool HasNonfatalFailure();
  static bool HasFailure();
  static bool IsSkipped();

 protected:
  // So that the arguments of a macro are found in any namespace.
  using WithComms = ::sherd::testing::WithComms;
  using WithoutComms = ::sherd::testing::WithoutComms;

  // Number of ranks, 1 to 256. SHERD_TEST_WORLD_SIZE (set by
  // sherd_distributed_test), otherwise 4. Constant during a test; may depend
  // on GetParam().
  virtual int world_size() const;

  // How long the test may take before it is ended, with the stacks of all
  // ranks. By default what is left of TEST_TIMEOUT, less a margin for the
  // report.
  virtual absl::Duration timeout() const;

  // This rank, in [0, world_size()); -1 outside of ranks.
  int rank() const { return rank_; }
  bool IsRank() const { return rank_ >= 0; }

  // The default group. Only in a body with communication.
  ProcessGroup& group();
  std::shared_ptr<ProcessGroup> shared_group();

  // A store of this test that its ranks share, and nobody else uses; with or
  // without communication. Only on ranks.
  Store& store();

  // Only in a body with WithComms{.init_rpc = true}.
  RemoteAccess& remote_access();

  // A directory of this test, empty at its start, shared by its ranks and
  // removed after it.
  virtual std::string temp_dir() const = 0;

  // Says that this rank leaves the group without waiting for the others.
  void SkipFinalBarrier() { final_barrier_ = false; }

  // What the macros define.
  virtual void RankBody() {}

  // What the macros call.
  //
  // Carries the test out where it stands: starts its ranks and waits for them,
  // or is one of them and calls RunAsRank. `make` makes another object of this
  // test's class.
  virtual void RunDistributed(const internal::TestPlan& plan,
                              const internal::FixtureFactory& make) = 0;

  // The rest is for those who say what a rank is.

  // `rank`: -1 outside of ranks.
  explicit DistributedFixture(int rank) : rank_(rank) {}

  // What the communication needs, before any rank starts; skips or fails where
  // the test cannot run.
  internal::CommsPlan CheckPlan(const internal::TestPlan& plan,
                                internal::RanksAre ranks);

  // Communication, RankBody, and the end of the communication.
  void RunAsRank(const internal::TestPlan& plan);

  // Where this rank meets the others. Only on ranks.
  virtual internal::CommsPlace place() const = 0;
  // A connection to the store of this test. Only on ranks.
  virtual std::shared_ptr<Store> OpenStore() const = 0;
  // What this rank does from now on.
  virtual void EnterPhase(absl::string_view) {}
  // Whether this rank has failed or skipped, so that it may be out of step
  // with the others.
  virtual bool HasFailedOrSkipped() const;
  // How a rank comes to its communication, and what becomes of it behind a
  // body. By default it is made anew for each test.
  virtual absl::StatusOr<std::shared_ptr<internal::Comms>> AcquireComms(
      const WithComms& wanted);
  virtual absl::Status ReleaseComms(std::shared_ptr<internal::Comms> comms,
                                    internal::Leaving leaving);
  // Right behind the body, whatever became of it.
  virtual void OnBodyEnd() {}

  // See SkipFinalBarrier().
  bool final_barrier() const { return final_barrier_; }

 private:
  friend struct internal::RankSteps;

  void Check(const internal::TestPlan& plan, internal::RanksAre ranks,
             internal::CommsPlan& comms);
  void EndComms();

  const int rank_;
  bool final_barrier_ = true;
  std::shared_ptr<internal::Comms> comms_;
  std::shared_ptr<Store> store_;
};

}  // namespace sherd::testing

// Defines a test that runs on world_size() ranks of a fixture derived from
// DistributedTest, PersistentDistributedTest or ThreadedDistributedTest:
//
//   SHERD_DIST_TEST_F(Fixture, Name) { … }
//   SHERD_DIST_TEST_F(Fixture, Name, WithComms{.backend = "shm"}) { … }
//   SHERD_DIST_TEST_F(Fixture, Name, WithoutComms{}) { … }
//   SHERD_DIST_TEST_F(Fixture, Name, SkipIfFewerGpusThan(2), RequiresRpc()) …
//
// Behind the name stand WithComms or WithoutComms, otherwise it is WithComms{},
// and any number of Requirements. These are evaluated as in a member function.
#define SHERD_DIST_TEST_F(fixture, name, ...)                              \
  SHERD_INTERNAL_DIST_TEST_CLASS(                                          \
      fixture, fixture##_##name##_DistTest __VA_OPT__(, ) __VA_ARGS__)     \
  [[maybe_unused]] static const ::testing::TestInfo* const                 \
      fixture##_##name##_registered = ::testing::RegisterTest(             \
          #fixture, #name, nullptr, nullptr, __FILE__, __LINE__,           \
          []() -> fixture* { return new fixture##_##name##_DistTest; });   \
  [[maybe_unused]] static const bool fixture##_##name##_noted =            \
      ::sherd::testing::internal::NoteDistributedTest(__FILE__, __LINE__); \
  void fixture##_##name##_DistTest::RankBody()

// The same for a fixture that also derives from
// ::testing::WithParamInterface<T>; INSTANTIATE_TEST_SUITE_P gives the values.
// world_size() and the arguments behind the name may use GetParam().
//
// GoogleTest has no function that registers a parameterised test; this is what
// its own TEST_P does, with the same internals from 1.12 on.
#define SHERD_DIST_TEST_P(fixture, name, ...)                                \
  SHERD_INTERNAL_DIST_TEST_CLASS(                                            \
      fixture, fixture##_##name##_DistTest __VA_OPT__(, ) __VA_ARGS__)       \
  [[maybe_unused]] static const bool fixture##_##name##_registered = [] {    \
    ::testing::UnitTest::GetInstance()                                       \
        ->parameterized_test_registry()                                      \
        .GetTestSuitePatternHolder<fixture>(                                 \
            #fixture, ::testing::internal::CodeLocation(__FILE__, __LINE__)) \
        ->AddTestPattern(                                                    \
            #fixture, #name,                                                 \
            new ::testing::internal::TestMetaFactory<                        \
                fixture##_##name##_DistTest>(),                              \
            ::testing::internal::CodeLocation(__FILE__, __LINE__));          \
    return true;                                                             \
  }();                                                                       \
  [[maybe_unused]] static const bool fixture##_##name##_noted =              \
      ::sherd::testing::internal::NoteDistributedTest(__FILE__, __LINE__);   \
  void fixture##_##name##_DistTest::RankBody()

#define SHERD_INTERNAL_DIST_TEST_CLASS(fixture, test_class, ...)          \
  class test_class : public fixture {                                     \
   protected:                                                             \
    void SetUp() override {                                               \
      if (IsRank()) fixture::SetUp();                                     \
    }                                                                     \
    void TearDown() override {                                            \
      if (IsRank()) fixture::TearDown();                                  \
    }                                                                     \
                                                                          \
   private:                                                               \
    void TestBody() override {                                            \
      RunDistributed(                                                     \
          ::sherd::testing::internal::MakePlan(                           \
              __FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__),             \
          []() -> std::unique_ptr<::sherd::testing::DistributedFixture> { \
            return std::make_unique<test_class>();                        \
          });                                                             \
    }                                                                     \
    void RankBody() override;                                             \
  };

#endif  // SHERD_TESTING_DISTRIBUTED_FIXTURE_H_
