#include "sherd/core/sharding/placement.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Device kCpu = {DeviceType::kCpu, -1};

Device Cuda(int index) { return {DeviceType::kCuda, index}; }

struct Accepted {
  const char* text;
  std::optional<int> rank;
  std::optional<std::string> worker;
  Device device;
  const char* printed;
};

const Accepted kAccepted[] = {
    {"rank:0/cuda:0", 0, {}, Cuda(0), "rank:0/cuda:0"},
    {"rank:3/cpu", 3, {}, kCpu, "rank:3/cpu"},
    {"rank:0", 0, {}, kCpu, "rank:0/cpu"},
    {"rank:00012", 12, {}, kCpu, "rank:12/cpu"},
    {"rank:2147483647", 2147483647, {}, kCpu, "rank:2147483647/cpu"},
    {"worker0/cuda:1", {}, "worker0", Cuda(1), "worker0/cuda:1"},
    {"trainer0/cpu", {}, "trainer0", kCpu, "trainer0/cpu"},
    {"trainer0", {}, "trainer0", kCpu, "trainer0/cpu"},
    {"cuda/cpu", {}, "cuda", kCpu, "cuda/cpu"},
    {"rank/cpu", {}, "rank", kCpu, "rank/cpu"},
    {"cpu2", {}, "cpu2", kCpu, "cpu2/cpu"},
    {"cuda:0", {}, {}, Cuda(0), "cuda:0"},
    {"cuda", {}, {}, Cuda(-1), "cuda"},
    {"cpu", {}, {}, kCpu, "cpu"},
    {"meta", {}, {}, {DeviceType::kMeta, -1}, "meta"},
};

TEST(PlacementTest, ReadsTheWholeGrammar) {
  for (const Accepted& c : kAccepted) {
    SCOPED_TRACE(c.text);
    SHERD_ASSERT_OK_AND_ASSIGN(const Placement placement,
                               Placement::Parse(c.text));
    EXPECT_EQ(placement.rank(), c.rank);
    EXPECT_EQ(placement.worker_name(), c.worker);
    EXPECT_EQ(placement.device(), c.device);
    EXPECT_EQ(placement.ToString(), c.printed);
    EXPECT_THAT(placement.status(), IsOk());
    EXPECT_THAT(Placement::Parse(c.printed), IsOkAndHolds(placement));
  }
}

struct Rejected {
  const char* text;
  absl::StatusCode code;
  const char* phrase;
};

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kRuntime = absl::StatusCode::kFailedPrecondition;

const Rejected kRejected[] = {
    {"", kInvalid, "Could not parse remote_device"},
    {"/", kInvalid, "Could not parse remote_device"},
    {"/cpu", kInvalid, "Could not parse remote_device"},
    {"cuda:foo", kInvalid, "Could not parse remote_device"},
    {"foo:0", kInvalid, "Could not parse remote_device"},
    {"random:0", kInvalid, "Could not parse remote_device"},
    {"rank:foo", kInvalid, "Could not parse remote_device"},
    {"rank:", kInvalid, "Could not parse remote_device"},
    {"rank:-1/cpu", kInvalid, "Could not parse remote_device"},
    {"rank:+1/cpu", kInvalid, "Could not parse remote_device"},
    {"rank: 1/cpu", kInvalid, "Could not parse remote_device"},
    {"rank:2147483648", kInvalid, "Could not parse remote_device"},
    {"rank:0:1", kInvalid, "Could not parse remote_device"},
    {"rank:0/cpu/1", kInvalid, "Could not parse remote_device"},
    {"foo:0/cpu", kInvalid, "Could not parse remote_device"},
    {"rank:0/cuda:foo", kRuntime, "Invalid device string"},
    {"rank:0/cpu2", kRuntime, "Invalid device string"},
    {"rank:0/foo", kRuntime, "Expected one of"},
    {"rank:0/random:0", kRuntime, "Expected one of"},
    // As a file or a peer may have it.
    {"rank:0\n\x1b", kInvalid, "remote_device: 'rank:0\\n\\x1b'"},
};

TEST(PlacementTest, ReportsTheDefectOfOtherText) {
  for (const Rejected& c : kRejected) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(Placement::Parse(c.text), StatusIs(c.code, c.phrase));
  }
}

TEST(PlacementTest, KeepsMalformedTextUntilItIsChecked) {
  for (const Rejected& c : kRejected) {
    SCOPED_TRACE(c.text);
    const Placement placement = c.text;
    EXPECT_THAT(placement.status(), StatusIs(c.code, c.phrase));
    EXPECT_EQ(placement.ToString(), c.text);
    EXPECT_EQ(placement.rank(), std::nullopt);
    EXPECT_EQ(placement.worker_name(), std::nullopt);
    EXPECT_THAT(ResolveRank(placement, AllRanks(4)),
                StatusIs(c.code, c.phrase));
  }
}

TEST(PlacementTest, IsMadeFromAnyKindOfText) {
  const std::string text = "rank:1/cpu";
  EXPECT_EQ(Placement(text), Placement::OnRank(1));
  EXPECT_EQ(Placement(absl::string_view(text)), Placement::OnRank(1));
  EXPECT_EQ(Placement("rank:1/cpu"), Placement::OnRank(1));
  EXPECT_EQ(Placement("a/cuda:2"), Placement::OnWorker("a", Cuda(2)));
  EXPECT_EQ(Placement("cuda:2"), Placement::OnDevice(Cuda(2)));
  EXPECT_EQ(Placement(), Placement("cpu"));
}

TEST(PlacementTest, EqualityAndHashLookAtOwnerAndDevice) {
  const char* const texts[] = {
      "cpu",       "rank:0/cpu",    "rank:1/cpu", "rank:0/cuda:0", "worker/cpu",
      "other/cpu", "worker/cuda:0", "cuda:0",     "not:valid",     "rank:x",
  };
  absl::flat_hash_set<Placement> set;
  for (const char* text : texts) {
    EXPECT_TRUE(set.insert(Placement(text)).second) << text;
    EXPECT_FALSE(set.insert(Placement(text)).second) << text;
  }
  EXPECT_TRUE(set.contains(Placement()));
  EXPECT_TRUE(set.contains(Placement::OnWorker("other")));
  EXPECT_FALSE(set.contains(Placement::OnRank(2)));
}

TEST(PlacementTest, AMalformedDeviceIsReportedByWhatTakesThePlacement) {
  for (const Placement& placement :
       {Placement::OnRank(0, "cuda:x"), Placement::OnWorker("a", "cuda:x"),
        Placement::OnDevice("cuda:x"), PlacementsOnRanks(2, "cuda:x", 2)[1],
        Placement("rank:1").OnSameOwner("cuda:x")}) {
    EXPECT_THAT(placement.status(),
                StatusIs(kRuntime, "Invalid device string: 'cuda:x'"));
    EXPECT_THAT(ResolveRank(placement, AllRanks(4)),
                StatusIs(kRuntime, "Invalid device string: 'cuda:x'"));
  }
}

TEST(PlacementTest, PlacesAreTheSameAsFarAsIndicesSay) {
  EXPECT_TRUE(SamePlace("rank:0/cuda", "rank:0/cuda:1"));
  EXPECT_TRUE(SamePlace("a/cuda:1", "a/cuda"));
  EXPECT_TRUE(SamePlace("rank:0", "rank:0/cpu"));
  EXPECT_FALSE(SamePlace("rank:0/cuda:0", "rank:0/cuda:1"));
  EXPECT_FALSE(SamePlace("rank:0/cuda", "rank:1/cuda"));
  EXPECT_FALSE(SamePlace("rank:0/cuda", "rank:0/cpu"));
}

TEST(PlacementTest, ListsRanksInOrder) {
  EXPECT_THAT(PlacementsOnRanks(3),
              ElementsAre(Placement("rank:0/cpu"), Placement("rank:1/cpu"),
                          Placement("rank:2/cpu")));
  EXPECT_THAT(PlacementsOnRanks(1, Cuda(1)),
              ElementsAre(Placement("rank:0/cuda:1")));
  EXPECT_THAT(PlacementsOnRanks(0), ElementsAre());
  EXPECT_THAT(PlacementsOnRanks(2, "cuda"),
              ElementsAre(Placement("rank:0/cuda"), Placement("rank:1/cuda")));
  // Two devices on each host.
  EXPECT_THAT(PlacementsOnRanks(3, "cuda", 2),
              ElementsAre(Placement("rank:0/cuda:0"), "rank:1/cuda:1",
                          "rank:2/cuda:0"));
  EXPECT_THAT(PlacementsOn({5, 2}, "cuda", 4),
              ElementsAre(Placement("rank:5/cuda:1"), "rank:2/cuda:2"));
}

TEST(PlacementTest, ResolvesRanksAgainstTheGroup) {
  EXPECT_THAT(ResolveRank(Placement("rank:0/cpu"), AllRanks(1)),
              IsOkAndHolds(0));
  EXPECT_THAT(ResolveRank(Placement("rank:3/cuda:0"), AllRanks(4)),
              IsOkAndHolds(3));
  EXPECT_THAT(ResolveRank(Placement("rank:4"), AllRanks(4)),
              StatusIs(kInvalid,
                       "Global rank 4 does not exist in input process group"));
  EXPECT_THAT(ResolveRank(std::nullopt, AllRanks(4)),
              StatusIs(kInvalid, "remote device is None"));
  EXPECT_THAT(ResolveRank(Placement("cuda:0"), AllRanks(4)),
              StatusIs(kInvalid, "has no owner"));
  EXPECT_THAT(ResolveRank(Placement("worker0/cpu"), AllRanks(4)),
              StatusIs(kRuntime,
                       "RPC framework needs to be initialized for using "
                       "worker names"));
}

TEST(PlacementTest, ListsRanks) {
  EXPECT_THAT(
      PlacementsOn({3, 0}, Cuda(1)),
      ElementsAre(Placement("rank:3/cuda:1"), Placement("rank:0/cuda:1")));
  EXPECT_THAT(AllRanks(3), ElementsAre(0, 1, 2));
  EXPECT_THAT(AllRanks(0), ElementsAre());
}

TEST(RankResolverTest, FindsGlobalRanksInAGroupOfAnyRanksInAnyOrder) {
  const std::vector<int> group = {5, 1, 2, 9};
  const RankResolver resolver(group);
  for (int rank = 0; rank < 4; ++rank) {
    const int global = group[static_cast<size_t>(rank)];
    EXPECT_THAT(resolver.Resolve(Placement::OnRank(global)),
                IsOkAndHolds(rank));
  }
  for (const int elsewhere : {0, 3, 4, 8, 10, INT32_MAX}) {
    EXPECT_THAT(
        resolver.Resolve(Placement::OnRank(elsewhere, Cuda(1))),
        StatusIs(kInvalid,
                 absl::StrCat("Global rank ", elsewhere,
                              " does not exist in input process group, whose "
                              "ranks are 5, 1, 2, 9 (placement 'rank:",
                              elsewhere, "/cuda:1')")));
  }
}

TEST(RankResolverTest, NamesNoMoreThanTheFirstRanksOfALargeGroup) {
  EXPECT_THAT(ResolveRank(Placement("rank:5000"), AllRanks(5000)),
              StatusIs(kInvalid,
                       "ranks are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, "
                       "11, 12, 13, 14, 15, … (5000 in all)"));
}

TEST(RankResolverTest, AProcessThatIsNotAMemberNeedNotKnowTheOwner) {
  const std::vector<int> group = {1, 3};
  const RankResolver resolver(group, {.is_member = false});
  EXPECT_THAT(resolver.Resolve(Placement("rank:3")), IsOkAndHolds(1));
  EXPECT_THAT(resolver.Resolve(Placement("rank:0")), IsOkAndHolds(-1));
  EXPECT_THAT(resolver.Resolve(std::nullopt),
              StatusIs(kInvalid, "remote device is None"));
  EXPECT_THAT(resolver.Resolve(Placement("rank:x")),
              StatusIs(kInvalid, "Could not parse remote_device"));
  EXPECT_THAT(resolver.Resolve(Placement("trainer/cpu")),
              StatusIs(kRuntime, "RPC framework needs to be initialized"));
}

TEST(RankResolverTest, FindsWorkersByTheirNames) {
  const std::vector<std::string> workers = {"master", "worker1", "w2", "w3"};
  const std::vector<int> group = {3, 1};
  const RankResolver resolver(group, {.workers = &workers});
  EXPECT_THAT(resolver.Resolve(Placement("worker1/cuda:0")), IsOkAndHolds(1));
  EXPECT_THAT(resolver.Resolve(Placement("w3")), IsOkAndHolds(0));
  EXPECT_THAT(resolver.Resolve(Placement("rank:3")), IsOkAndHolds(0));
  EXPECT_THAT(resolver.Resolve(Placement("w4/cpu")),
              StatusIs(kInvalid,
                       "Invalid worker name 'w4': the workers are "
                       "master, worker1, w2, w3"));
  // A worker that is not in the group.
  EXPECT_THAT(resolver.Resolve(Placement("w2/cpu")),
              StatusIs(kInvalid,
                       "Global rank 2 does not exist in input "
                       "process group, whose ranks are 3, 1 "
                       "(placement 'w2/cpu')"));
  EXPECT_THAT(ResolveRank(Placement("w2"), group, &workers),
              StatusIs(kInvalid, "Global rank 2"));
  EXPECT_THAT(ResolveRank(Placement("worker1"), group, &workers),
              IsOkAndHolds(1));
}

}  // namespace
}  // namespace sherd
