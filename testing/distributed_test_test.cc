#include "sherd/testing/distributed_test.h"

#include <signal.h>
#include <unistd.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/init.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class RanksTest : public DistributedTest {};

// One number of each rank, on every rank.
std::vector<int64_t> Exchange(ProcessGroup& group, int64_t mine) {
  std::vector<int64_t> all(group.size());
  const absl::Status status = group.AllGather(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&mine),
                          sizeof(mine)),
      absl::MakeSpan(reinterpret_cast<std::byte*>(all.data()),
                     all.size() * sizeof(int64_t)));
  EXPECT_THAT(status, IsOk());
  return all;
}

SHERD_DIST_TEST_F(RanksTest, EachRankIsAProcessAndTheGroupConnectsThem) {
  EXPECT_EQ(group().rank(), rank());
  EXPECT_EQ(group().size(), world_size());
  EXPECT_EQ(group().backend().name, GetKnobOr(Knob::kTestBackend, "gloo"));
  const std::vector<int64_t> pids = Exchange(group(), getpid());
  EXPECT_THAT(std::set<int64_t>(pids.begin(), pids.end()),
              SizeIs(world_size()));
  EXPECT_EQ(pids[rank()], getpid());
}

SHERD_DIST_TEST_F(RanksTest, TheWorldSizeIsTheTargets) {
  EXPECT_EQ(absl::StrCat(world_size()), GetKnobOr(Knob::kTestWorldSize, "4"));
}

SHERD_DIST_TEST_F(RanksTest, TheDefaultGroupIsTheGroupOfTheTest) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto found, DefaultGroup());
  EXPECT_EQ(found, shared_group());
}

SHERD_DIST_TEST_F(RanksTest, ABackendCanBeNamed,
                  (WithComms{.backend = "gloo", .init_rpc = false})) {
  EXPECT_EQ(group().backend().name, "gloo");
}

SHERD_DIST_TEST_F(RanksTest, WithoutCommsInitFindsEverythingInTheEnvironment,
                  WithoutComms{}) {
  EXPECT_THAT(DefaultGroup(), StatusIs(absl::StatusCode::kFailedPrecondition));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto group, Init({}));
  EXPECT_EQ(group->rank(), rank());
  EXPECT_EQ(group->size(), world_size());
  EXPECT_THAT(group->Barrier(), IsOk());
  EXPECT_THAT(group->Destroy(), IsOk());
}

SHERD_DIST_TEST_F(RanksTest, TheDirectoryIsEmptyAndShared) {
  FileSystem& files = FileSystem::Posix();
  if (rank() == 0) {
    EXPECT_THAT(files.List(temp_dir()), IsOkAndHolds(SizeIs(0)));
  }
  ASSERT_THAT(group().Barrier(), IsOk());
  const std::string own = JoinPath(temp_dir(), absl::StrCat("of_", rank()));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto file, files.Create(own));
  ASSERT_THAT(group().Barrier(), IsOk());
  EXPECT_THAT(files.List(temp_dir()), IsOkAndHolds(SizeIs(world_size())));
}

SHERD_DIST_TEST_F(RanksTest, ARankCanBeExpectedToDie) {
  const int victim = world_size() - 1;
  ExpectRankDies(victim, SIGKILL);
  if (rank() == victim) raise(SIGKILL);
  const absl::Status status = group().Barrier();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr(absl::StrCat("rank ", victim, ": died"))));
}

SHERD_DIST_TEST_F(RanksTest, TheBarrierIsLeftOutIfTheGroupIsGone) {
  EXPECT_THAT(group().Destroy(), IsOk());
}

SHERD_DIST_TEST_F(RanksTest, ARankMayLeaveWithoutTheBarrier) {
  if (rank() == 0) SkipFinalBarrier();
  if (rank() != 0) group().Abort(absl::CancelledError("on purpose"));
}

SHERD_DIST_TEST_F(RanksTest, VariablesOfTheParentAreNotInherited,
                  WithoutComms{}) {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    for (const char* name :
         {"TEST_PREMATURE_EXIT_FILE=", "XML_OUTPUT_FILE=", "GTEST_",
          "TEST_SHARD", "TEST_TOTAL_SHARDS=", "SHERD_TEST_RANK_FD="}) {
      EXPECT_FALSE(absl::StartsWith(*variable, name)) << *variable;
    }
  }
}

class SetUpTest : public DistributedTest {
 protected:
  SetUpTest() { ++steps_; }
  void SetUp() override { set_up_on_ = rank(); }
  void TearDown() override { EXPECT_GE(rank(), 0); }
  int world_size() const override { return 3; }

  int steps_ = 0;
  int set_up_on_ = -2;
};

SHERD_DIST_TEST_F(SetUpTest, SetUpRunsOnTheRanks) {
  EXPECT_EQ(set_up_on_, rank());
  EXPECT_EQ(steps_, 1);
  EXPECT_EQ(group().size(), 3);
}

}  // namespace
}  // namespace sherd::testing
