#include "sherd/testing/threaded_test.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/process/subprocess.h"
#include "sherd/core/tensor/random.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/rank_results.h"

namespace sherd::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class ThreadedTest : public ThreadedDistributedTest {
 protected:
  int world_size() const override { return 3; }
};

SHERD_DIST_TEST_F(ThreadedTest, TheGroupConnectsTheRanks) {
  EXPECT_EQ(group().size(), 3);
  EXPECT_EQ(group().rank(), rank());
  EXPECT_EQ(group().backend().name, "local");
  const auto mine = static_cast<std::byte>(10 + rank());
  std::byte all[3] = {};
  ASSERT_THAT(
      group().AllGather(absl::MakeConstSpan(&mine, 1), absl::MakeSpan(all)),
      IsOk());
  for (int r = 0; r < 3; ++r) EXPECT_EQ(static_cast<int>(all[r]), 10 + r);
}

SHERD_DIST_TEST_F(ThreadedTest, EachRankHasItsOwnDefaults) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto found, DefaultGroup());
  EXPECT_EQ(found.get(), &group());
  EXPECT_EQ(LogRank(), rank());
  EXPECT_EQ(DefaultGenerator().GetState(), Generator::State());
  ManualSeed(static_cast<uint64_t>(rank()));
  ASSERT_THAT(group().Barrier(), IsOk());
  EXPECT_EQ(DefaultGenerator().GetState().seed, static_cast<uint64_t>(rank()));
}

SHERD_DIST_TEST_F(ThreadedTest, TheRanksShareAStoreAndADirectory) {
  const std::string path = JoinPath(temp_dir(), "file");
  if (rank() == 1) {
    std::ofstream(path) << "from rank 1";
    ASSERT_THAT(store().Set("path", path), IsOk());
  }
  EXPECT_THAT(store().Get("path", Deadline::Infinite()), IsOkAndHolds(path));
  EXPECT_THAT(ReadFile(FileSystem::Posix(), path, 100),
              IsOkAndHolds("from rank 1"));
}

SHERD_DIST_TEST_F(ThreadedTest, WithoutCommsABodyMakesItsGroup,
                  WithoutComms{}) {
  EXPECT_THAT(DefaultGroup(), StatusIs(absl::StatusCode::kFailedPrecondition));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto group, Init({.backend = "local",
                                                     .rank = rank(),
                                                     .world_size = world_size(),
                                                     .store = shared_store()}));
  EXPECT_THAT(group->Barrier(), IsOk());
  // Left behind: the next test finds no default group.
}

SHERD_DIST_TEST_F(ThreadedTest, NothingIsLeftOfTheTestBefore, WithoutComms{}) {
  EXPECT_THAT(DefaultGroup(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(store().Contains("path"), IsOkAndHolds(false));
  EXPECT_TRUE(std::filesystem::is_empty(temp_dir()));
}

TEST_F(ThreadedTest, AnOrdinaryTestOfTheFixtureIsNoRank) {
  EXPECT_FALSE(IsRank());
  EXPECT_EQ(rank(), -1);
}

class ThreadedSizesTest : public ThreadedDistributedTest,
                          public ::testing::WithParamInterface<int> {
 protected:
  int world_size() const override { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(WorldSizes, ThreadedSizesTest,
                         ::testing::Values(1, 2, 5, 64));

SHERD_DIST_TEST_P(ThreadedSizesTest, AllRanksComeAndCount) {
  int32_t one = 1;
  ASSERT_THAT(
      group().AllReduce<int32_t>(absl::MakeSpan(&one, 1), ReduceOp::kSum),
      IsOk());
  EXPECT_EQ(one, GetParam());
  EXPECT_LT(rank(), GetParam());
}

// A test that runs inside of another one, so that it may fail.
class Probe : public ThreadedDistributedTest {
 public:
  using Step = std::function<void(Probe&)>;
  struct Script {
    int size = 3;
    Step set_up = [](Probe&) {};
    Step body = [](Probe&) {};
    Step tear_down = [](Probe&) {};
    absl::Duration timeout = absl::Seconds(60);
  };

  explicit Probe(const Script& script) : script_(script) {}

  // What the test before gtest's eyes would record.
  static internal::RankOutcome Run(const Script& script,
                                   const internal::TestPlan& plan = {
                                       .file = "probe.cc", .line = 7}) {
    internal::RankResults results(Deadline::Clock::now());
    const internal::ScopedRankResults scope(
        results, ::testing::ScopedFakeTestPartResultReporter::
                     INTERCEPT_ONLY_CURRENT_THREAD);
    Probe parent(script);
    parent.RunDistributed(
        plan, [&script] { return std::make_unique<Probe>(script); });
    return results.outcome();
  }

  using ThreadedDistributedTest::group;
  using ThreadedDistributedTest::rank;
  using ThreadedDistributedTest::store;
  using ThreadedDistributedTest::temp_dir;

 protected:
  int world_size() const override { return script_.size; }
  absl::Duration timeout() const override { return script_.timeout; }
  absl::Duration grace() const override { return absl::Milliseconds(100); }
  void SetUp() override { script_.set_up(*this); }
  void RankBody() override { script_.body(*this); }
  void TearDown() override { script_.tear_down(*this); }
  void TestBody() override {}

 private:
  const Script& script_;
};

std::vector<std::string> Texts(const internal::RankOutcome& outcome) {
  std::vector<std::string> texts;
  for (const internal::TimedFrame& timed : outcome.failures) {
    texts.push_back(timed.frame.text);
  }
  return texts;
}

TEST(ThreadedFailureTest, AFailureIsReportedOnceWithRankAndPlace) {
  const internal::RankOutcome outcome =
      Probe::Run({.body = [](Probe& test) { EXPECT_NE(test.rank(), 1); }});
  EXPECT_THAT(Texts(outcome),
              ElementsAre(AllOf(HasSubstr("root cause: rank 1 failed at"),
                                HasSubstr("rank 2 ")),
                          AllOf(HasSubstr("[rank 1] "), HasSubstr("!= (1)"))));
  EXPECT_EQ(outcome.failures[0].frame.file, "probe.cc");
  EXPECT_THAT(outcome.failures[1].frame.file,
              HasSubstr("threaded_test_test.cc"));
}

TEST(ThreadedFailureTest, AnAssertionEndsItsRankOnly) {
  std::atomic<int> went_on{0};
  const internal::RankOutcome outcome = Probe::Run({.body = [&](Probe& test) {
    ASSERT_NE(test.rank(), 1);
    EXPECT_THAT(test.group().Barrier(),
                StatusIs(absl::StatusCode::kUnavailable, "rank 1"));
    ++went_on;
  }});
  EXPECT_EQ(went_on, 2);
  EXPECT_THAT(Texts(outcome), SizeIs(2));
}

TEST(ThreadedFailureTest, AfterAFailedSetUpThatRankHasNoBody) {
  absl::Mutex mutex;
  std::multiset<std::string> steps;
  const auto note = [&](absl::string_view what) {
    return [&, what](Probe& test) {
      absl::MutexLock lock(&mutex);
      steps.insert(absl::StrCat(what, test.rank()));
    };
  };
  const internal::RankOutcome outcome = Probe::Run(
      {.size = 2,
       .set_up = [](Probe& test) { ASSERT_NE(test.rank(), 0) << "no"; },
       .body = note("body"),
       .tear_down = note("tear down")},
      {.comms = std::nullopt, .file = "probe.cc", .line = 7});
  EXPECT_THAT(steps, ElementsAre("body1", "tear down0", "tear down1"));
  EXPECT_THAT(Texts(outcome), SizeIs(2));
}

TEST(ThreadedFailureTest, AnExceptionIsAFailureAndEndsTheOthersWaits) {
  std::atomic<int> told{0};
  const internal::RankOutcome outcome = Probe::Run({.body = [&](Probe& test) {
    if (test.rank() == 2) throw std::runtime_error("oops");
    EXPECT_THAT(test.group().Barrier(),
                StatusIs(absl::StatusCode::kUnavailable, "rank 2"));
    ++told;
  }});
  EXPECT_EQ(told, 2);
  EXPECT_THAT(Texts(outcome),
              ElementsAre(HasSubstr("root cause: rank 2 failed"),
                          AllOf(HasSubstr("[rank 2]"),
                                HasSubstr("an exception: oops"))));
}

TEST(ThreadedFailureTest, AnAssertionOutranksALostPeer) {
  const internal::RankOutcome outcome = Probe::Run({.body = [](Probe& test) {
    if (test.rank() == 2) {
      // Fails last.
      ASSERT_THAT(test.store().Get("failed", Deadline::Infinite()), IsOk());
      FAIL() << "the cause";
    }
    if (test.rank() == 0) {
      ADD_FAILURE() << "UNAVAILABLE: rank 2 is gone";
      ASSERT_THAT(test.store().Set("failed", "yes"), IsOk());
    }
  }});
  ASSERT_THAT(Texts(outcome), SizeIs(3));
  EXPECT_THAT(Texts(outcome)[0],
              AllOf(HasSubstr("root cause: rank 2"), HasSubstr("the cause")));
}

TEST(ThreadedFailureTest, ARankKnowsItsOwnFailuresOnly) {
  std::atomic<int> failed{0};
  std::atomic<int> good{0};
  Probe::Run({.body = [&](Probe& test) {
    EXPECT_NE(test.rank(), 0);
    ++(test.HasFailure() ? failed : good);
  }});
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(good, 2);
}

TEST(ThreadedFailureTest, SkipsAreUnanimous) {
  const internal::RankOutcome all = Probe::Run(
      {.body = [](Probe&) { SHERD_SKIP(SkipReason::kNoCuda) << "none here"; }});
  EXPECT_THAT(all.failures, IsEmpty());
  ASSERT_TRUE(all.skip.has_value());
  EXPECT_THAT(all.skip->text, HasSubstr("CUDA is not available. none here"));

  const internal::RankOutcome one = Probe::Run({.body = [](Probe& test) {
    if (test.rank() == 1) GTEST_SKIP() << "not me";
  }});
  ASSERT_THAT(Texts(one), SizeIs(1));
  EXPECT_THAT(Texts(one)[0],
              AllOf(HasSubstr("1 of 3 ranks skipped, expected all or none"),
                    HasSubstr("rank 1 skipped: not me")));
}

TEST(ThreadedFailureTest, WaitsForTheStoreEndWhenARankHasFailed) {
  const internal::RankOutcome outcome = Probe::Run({.body = [](Probe& test) {
    ASSERT_NE(test.rank(), 1);
    EXPECT_THAT(test.store().Get("never", Deadline::Infinite()),
                StatusIs(absl::StatusCode::kUnavailable,
                         "rank 1 has failed or skipped"));
  }});
  EXPECT_THAT(Texts(outcome), SizeIs(2));
}

TEST(ThreadedFailureTest, AtTheTimeoutRanksAreBroughtBackAndNamed) {
  const internal::RankOutcome outcome = Probe::Run(
      {.body =
           [](Probe& test) {
             if (test.rank() != 1) return;
             test.store().Get("never", Deadline::Infinite()).IgnoreError();
           },
       .timeout = absl::Milliseconds(200)},
      {.comms = std::nullopt, .file = "probe.cc", .line = 7});
  ASSERT_THAT(Texts(outcome), SizeIs(2));
  EXPECT_THAT(
      Texts(outcome)[0],
      AllOf(HasSubstr("timed out after 200ms"), HasSubstr("rank 0 passed"),
            HasSubstr("rank 1 was stopped by the harness in phase "
                      "body")));
}

TEST(ThreadedFailureTest, AnotherBackendIsRefused) {
  const internal::RankOutcome outcome = Probe::Run(
      {}, {.comms = WithComms{.backend = "gloo"}, .file = "p.cc", .line = 7});
  ASSERT_THAT(Texts(outcome), SizeIs(1));
  EXPECT_THAT(Texts(outcome)[0],
              AllOf(HasSubstr("gloo"), HasSubstr("threads")));
}

TEST(ThreadedFailureTest, WorldSizesThatAreNoneAreRefused) {
  for (const int size : {-1, 0, 1000}) {
    const internal::RankOutcome outcome = Probe::Run({.size = size});
    ASSERT_THAT(Texts(outcome), SizeIs(1));
    EXPECT_THAT(Texts(outcome)[0],
                HasSubstr(absl::StrCat("world size ", size)));
  }
}

TEST(ThreadedFailureTest, AfterAFailureTheNextTestIsAsNew) {
  Probe::Run({.body = [](Probe& test) {
    ASSERT_NE(test.rank(), 1);
    test.group().Barrier().IgnoreError();
  }});
  const internal::RankOutcome outcome = Probe::Run({.body = [](Probe& test) {
    EXPECT_THAT(test.group().Barrier(), IsOk());
  }});
  EXPECT_THAT(Texts(outcome), IsEmpty());
}

TEST(ThreadedFailureTest, TheDirectoryGoesWithTheTest) {
  std::string path;
  absl::Mutex mutex;
  Probe::Run({.body = [&](Probe& test) {
    absl::MutexLock lock(&mutex);
    path = test.temp_dir();
    EXPECT_EQ(access(path.c_str(), F_OK), 0);
  }});
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

// Programs: this one again, with other tests.

class ThreadedHang : public ThreadedDistributedTest {
 protected:
  int world_size() const override { return 2; }
  absl::Duration timeout() const override { return absl::Milliseconds(200); }
};

SHERD_DIST_TEST_F(ThreadedHang, DISABLED_DoesNotReturn) {
  if (rank() == 1) {
    for (;;) pause();
  }
}

SHERD_DIST_TEST_F(ThreadedHang, DISABLED_ForksAndReturns, WithoutComms{}) {
  if (rank() == 0) fork();
}

struct Ended {
  ExitStatus status;
  std::string output;
};

Ended RunThisProgram(const std::vector<std::string>& flags) {
  absl::StatusOr<Pipe> pipe = MakePipe();
  EXPECT_THAT(pipe, IsOk());
  std::vector<std::string> arguments = {"threaded_test_test"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::vector<std::string> environment;
  for (std::string& variable : OwnEnvironment()) {
    // Of this test, not of that one.
    if (!absl::StartsWith(variable, "GTEST_") &&
        !absl::StartsWith(variable, "XML_OUTPUT_FILE") &&
        !absl::StartsWith(variable, "TEST_PREMATURE_EXIT_FILE")) {
      environment.push_back(std::move(variable));
    }
  }
  absl::StatusOr<Subprocess> process =
      Subprocess::Start({.program = "/proc/self/exe",
                         .arguments = arguments,
                         .environment = environment,
                         .output_fd = pipe->write.get()});
  EXPECT_THAT(process, IsOk());
  pipe->write.Reset();
  std::string output;
  char buffer[4096];
  for (;;) {
    const ssize_t size = read(pipe->read.get(), buffer, sizeof(buffer));
    if (size <= 0) break;
    output.append(buffer, size);
  }
  return {process->Wait(), std::move(output)};
}

TEST(ThreadedProgramTest, ARankThatNeverReturnsEndsTheProgramWithItsStacks) {
  const Ended ended =
      RunThisProgram({"--gtest_also_run_disabled_tests",
                      "--gtest_filter=ThreadedHang.DISABLED_DoesNotReturn"});
  EXPECT_TRUE(ended.status.ExitedWith(1)) << ended.status.ToString();
  EXPECT_THAT(
      ended.output,
      AllOf(HasSubstr("(rank 1)"), HasSubstr("pause"),
            HasSubstr("timed out after 200ms"),
            HasSubstr("The test program ends here: "
                      "ThreadedHang.DISABLED_DoesNotReturn does not return")));
}

TEST(ThreadedProgramTest, AForkedProcessDoesNotGoOnAsARank) {
  const Ended ended =
      RunThisProgram({"--gtest_also_run_disabled_tests",
                      "--gtest_filter=ThreadedHang.DISABLED_ForksAndReturns"});
  EXPECT_TRUE(ended.status.ExitedWith(0)) << ended.status.ToString();
  EXPECT_THAT(ended.output,
              HasSubstr("[rank 0] a process that the body forked returned"));
}

TEST(ThreadedProgramTest, RepeatsShufflesAndFilters) {
  const Ended ended =
      RunThisProgram({"--gtest_filter=ThreadedTest.*:*AllRanksComeAndCount*",
                      "--gtest_repeat=3", "--gtest_shuffle"});
  EXPECT_TRUE(ended.status.ExitedWith(0)) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("[  PASSED  ] 10 tests."));
}

}  // namespace
}  // namespace sherd::testing
