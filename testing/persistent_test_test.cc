#include "sherd/testing/persistent_test.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/init.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

using ::testing::SizeIs;

// What a rank process has seen, over its tests.
int suites_set_up = 0;
bool saw_first_group = false;
bool saw_death = false;
bool saw_skip = false;
ProcessGroup* first_group = nullptr;

// Where rank 0 writes its process number, once per test.
std::string ProcessesFile(const std::string& directory, pid_t parent) {
  return JoinPath(directory, absl::StrCat("processes_of_", parent));
}

class PersistentTest : public PersistentDistributedTest {
 protected:
  static void SetUpTestSuite() { ++suites_set_up; }
  static bool IsSetUp() {
    return suites_set_up == 1 ||
           (suites_set_up > 1 && GTEST_FLAG_GET(repeat) != 1);
  }
  void SetUp() override {
    if (rank() != 0) return;
    const std::string path =
        ProcessesFile(JoinPath(temp_dir(), "../.."), getppid());
    std::ofstream(path, std::ios::app) << getpid() << "\n";
  }
};

SHERD_DIST_TEST_F(PersistentTest, IsTheFirst) {
  EXPECT_EQ(group().rank(), rank());
  EXPECT_EQ(group().size(), world_size());
  EXPECT_TRUE(IsSetUp());
  saw_first_group = true;
  first_group = &group();
  ASSERT_THAT(store().Set(absl::StrCat("key", rank()), "left"), IsOk());
  const std::string own = JoinPath(temp_dir(), absl::StrCat("of_", rank()));
  EXPECT_THAT(FileSystem::Posix().Create(own), IsOk());
}

SHERD_DIST_TEST_F(PersistentTest, TheSecondFindsTheSameGroup) {
  EXPECT_TRUE(IsSetUp());
  if (GTEST_FLAG_GET(repeat) != 1 || !saw_first_group) return;
  EXPECT_EQ(&group(), first_group);
}

SHERD_DIST_TEST_F(PersistentTest, DirectoryAndStoreAreEmptyAtTheStart) {
  EXPECT_THAT(FileSystem::Posix().List(temp_dir()), IsOkAndHolds(SizeIs(0)));
  EXPECT_THAT(store().Contains("key0"), IsOkAndHolds(false));
  // Nobody writes before all have looked.
  ASSERT_THAT(group().Barrier(), IsOk());
  ASSERT_THAT(store().Set(absl::StrCat("key", rank()), "left"), IsOk());
  for (int r = 0; r < world_size(); ++r) {
    EXPECT_THAT(
        store().Get(absl::StrCat("key", r), Deadline::After(absl::Seconds(60))),
        IsOkAndHolds("left"));
  }
}

SHERD_DIST_TEST_F(PersistentTest, ADirectoryMayBeRemoved) {
  ASSERT_THAT(group().Barrier(), IsOk());
  if (rank() == 0) {
    EXPECT_THAT(FileSystem::Posix().RemoveAll(temp_dir()), IsOk());
  }
  ASSERT_THAT(group().Barrier(), IsOk());
  EXPECT_THAT(store().Add("count", 1), IsOk());
}

SHERD_DIST_TEST_F(PersistentTest, AndIsThereAgain) {
  EXPECT_THAT(FileSystem::Posix().List(temp_dir()), IsOkAndHolds(SizeIs(0)));
  EXPECT_THAT(store().Contains("count"), IsOkAndHolds(false));
}

SHERD_DIST_TEST_F(PersistentTest, WithoutCommsThereIsNoGroup, WithoutComms{}) {
  EXPECT_THAT(DefaultGroup(), StatusIs(absl::StatusCode::kFailedPrecondition));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto group, Init({}));
  EXPECT_EQ(group->size(), world_size());
  EXPECT_THAT(group->Barrier(), IsOk());
  EXPECT_THAT(group->Destroy(), IsOk());
}

SHERD_DIST_TEST_F(PersistentTest, AnotherTimeoutMakesAnotherGroup,
                  WithComms{.timeout = absl::Seconds(30)}) {
  EXPECT_THAT(group().Barrier(), IsOk());
}

SHERD_DIST_TEST_F(PersistentTest, ARankCanBeExpectedToDie) {
  saw_death = true;
  const int victim = world_size() - 1;
  ExpectRankDies(victim, SIGKILL);
  if (rank() == victim) raise(SIGKILL);
  EXPECT_THAT(group().Barrier(), StatusIs(absl::StatusCode::kUnavailable));
}

SHERD_DIST_TEST_F(PersistentTest, AfterADeathThereAreNewRanks) {
  EXPECT_FALSE(saw_death);
  EXPECT_THAT(group().Barrier(), IsOk());
}

SHERD_DIST_TEST_F(PersistentTest, ASkipIsOne) {
  saw_skip = true;
  SHERD_SKIP(SkipReason::kSmallWorldSize) << "on purpose";
}

SHERD_DIST_TEST_F(PersistentTest, AfterASkipThereAreNewRanks) {
  EXPECT_FALSE(saw_skip);
}

SHERD_DIST_TEST_F(PersistentTest, AGroupMayBeDestroyed) {
  EXPECT_THAT(group().Destroy(), IsOk());
}

SHERD_DIST_TEST_F(PersistentTest, AndThenThereIsANewOne) {
  EXPECT_THAT(group().Barrier(), IsOk());
}

SHERD_DIST_TEST_F(PersistentTest, AGroupMayBeLeftOver, WithoutComms{}) {
  EXPECT_THAT(Init({}), IsOk());
}

SHERD_DIST_TEST_F(PersistentTest, AndIsNotInTheWay) {
  EXPECT_THAT(group().Barrier(), IsOk());
}

TEST_F(PersistentTest, OrdinaryTestsOfTheFixtureRunInTheParent) {
  EXPECT_FALSE(IsRank());
  EXPECT_TRUE(IsSetUp());
}

TEST_F(PersistentTest, RanksStayFromTestToTest) {
  const auto& suite = *::testing::UnitTest::GetInstance()->current_test_suite();
  if (suite.test_to_run_count() != suite.total_test_count() ||
      GTEST_FLAG_GET(shuffle) || GTEST_FLAG_GET(repeat) != 1) {
    GTEST_SKIP() << "only some tests have run, or in another order";
  }
  const std::string path =
      ProcessesFile(GetKnobOr(Knob::kTestTmpDir, "/tmp"), getpid());
  std::vector<int> processes;
  std::ifstream file(path);
  for (int process; file >> process;) processes.push_back(process);
  EXPECT_THAT(FileSystem::Posix().Remove(path), IsOk());
  EXPECT_THAT(processes, SizeIs(15));
  // New ones behind a death, a skip, a group destroyed, and one left over.
  EXPECT_THAT(std::set<int>(processes.begin(), processes.end()), SizeIs(5));
}

// Of this rank.
int tests_of_size = 0;

// World size, backend.
class SizesTest
    : public PersistentDistributedTest,
      public ::testing::WithParamInterface<std::tuple<int, std::string>> {
 protected:
  int world_size() const override { return std::get<0>(GetParam()); }
  const std::string& backend() const { return std::get<1>(GetParam()); }
};

SHERD_DIST_TEST_P(SizesTest, TheParameterGivesSizeAndBackend,
                  WithComms{.backend = backend()}) {
  EXPECT_EQ(group().size(), std::get<0>(GetParam()));
  EXPECT_EQ(group().backend().name, std::get<1>(GetParam()));
  ++tests_of_size;
}

SHERD_DIST_TEST_P(SizesTest, RanksOfOneSizeStayWhileOthersRun,
                  WithComms{.backend = backend()}) {
  EXPECT_THAT(group().Barrier(), IsOk());
  const bool ran_both =
      GTEST_FLAG_GET(filter).find("TheParameterGives") != std::string::npos &&
      GTEST_FLAG_GET(repeat) == 1;
  if (ran_both) {
    EXPECT_EQ(tests_of_size, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Some, SizesTest,
                         ::testing::Combine(::testing::Values(1, 3),
                                            ::testing::Values("gloo")));

// The same with a process per test.
class FreshSizesTest : public DistributedTest,
                       public ::testing::WithParamInterface<int> {
 protected:
  int world_size() const override { return GetParam(); }
};

SHERD_DIST_TEST_P(FreshSizesTest, TheParameterGivesTheSize) {
  EXPECT_EQ(group().size(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Some, FreshSizesTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace sherd::testing
