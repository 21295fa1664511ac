// Groups of groups: ProcessGroup::NewGroup and Split, over ranks as threads.

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// The ranks in the job of the group's ranks, found by talking to them.
std::vector<int32_t> Gathered(ProcessGroup& group, int own) {
  const int32_t value = own;
  std::vector<int32_t> all(group.size());
  EXPECT_THAT(
      group.AllGather(ConstBytes(reinterpret_cast<const std::byte*>(&value), 4),
                      MutableBytes(reinterpret_cast<std::byte*>(all.data()),
                                   4 * all.size())),
      IsOk());
  return all;
}

TEST(NewGroupTest, RanksOfTheNewGroupTalkToEachOther) {
  RunLocalRanks(4, [](ProcessGroup& world) {
    const std::vector<int> ranks = {1, 3};
    const auto group = world.NewGroup(ranks);
    ASSERT_THAT(group, IsOk());
    EXPECT_EQ((*group)->size(), 2);
    EXPECT_THAT((*group)->world_ranks(), ElementsAre(1, 3));
    if (world.rank() % 2 == 0) {
      EXPECT_FALSE((*group)->is_member());
      EXPECT_EQ((*group)->rank(), -1);
      EXPECT_THAT((*group)->Barrier(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           HasSubstr("not a member of the group, whose ranks "
                                     "are ranks 1, 3 of the job")));
      EXPECT_THAT((*group)->AllToAllV({}, {}),
                  StatusIs(absl::StatusCode::kFailedPrecondition));
      EXPECT_THAT((*group)->NewGroup({0}),
                  StatusIs(absl::StatusCode::kFailedPrecondition));
      EXPECT_THAT((*group)->Destroy(), IsOk());
      return;
    }
    EXPECT_EQ((*group)->rank(), world.rank() / 2);
    EXPECT_THAT(Gathered(**group, world.rank()), ElementsAre(1, 3));
    EXPECT_THAT((*group)->Barrier(), IsOk());
    EXPECT_THAT((*group)->Destroy(), IsOk());
  });
}

TEST(NewGroupTest, OnlyMembersNeedToCallAndInAnyOrder) {
  RunLocalRanks(3, [](ProcessGroup& world) {
    // Rank 1 makes {1, 2} first, the others {0, 1} and {0, 2}: with groups
    // numbered by creation these would be mixed up.
    std::vector<std::vector<int>> lists = {{0, 1}, {0, 2}, {1, 2}};
    if (world.rank() == 1) std::swap(lists[0], lists[2]);
    std::vector<std::shared_ptr<ProcessGroup>> groups(lists.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < lists.size(); ++i) {
      if (lists[i][0] != world.rank() && lists[i][1] != world.rank()) continue;
      threads.emplace_back([&, i] {
        auto group = world.NewGroup(lists[i]);
        ASSERT_THAT(group, IsOk());
        groups[i] = *group;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::vector<int>& list :
         std::vector<std::vector<int>>{{0, 1}, {0, 2}, {1, 2}}) {
      for (size_t i = 0; i < lists.size(); ++i) {
        if (groups[i] == nullptr || lists[i] != list) continue;
        EXPECT_THAT(Gathered(*groups[i], world.rank()), ElementsAreArray(list));
      }
    }
    EXPECT_THAT(world.Barrier(), IsOk());
  });
}

TEST(NewGroupTest, TheSameRanksMayFormSeveralGroups) {
  RunLocalRanks(2, [](ProcessGroup& world) {
    std::set<std::string> names;
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    for (int i = 0; i < 3; ++i) {
      auto group = world.NewGroup({0, 1});
      ASSERT_THAT(group, IsOk());
      names.insert((*group)->name());
      groups.push_back(*group);
    }
    EXPECT_EQ(names.size(), 3u);
    for (int i = 2; i >= 0; --i) {
      EXPECT_THAT(Gathered(*groups[i], world.rank()), ElementsAre(0, 1));
    }
    EXPECT_THAT(world.Barrier(), IsOk());
  });
}

TEST(NewGroupTest, GroupsNest) {
  RunLocalRanks(4, [](ProcessGroup& world) {
    if (world.rank() == 0) return;
    auto three = world.NewGroup({1, 2, 3});
    ASSERT_THAT(three, IsOk());
    auto two = (*three)->NewGroup({0, 2});
    ASSERT_THAT(two, IsOk());
    EXPECT_THAT((*two)->world_ranks(), ElementsAre(1, 3));
    if ((*two)->is_member()) {
      EXPECT_THAT(Gathered(**two, world.rank()), ElementsAre(1, 3));
    }
    EXPECT_THAT((*three)->Barrier(), IsOk());
  });
}

TEST(NewGroupTest, SplitOrdersByKey) {
  RunLocalRanks(5, [](ProcessGroup& world) {
    // Evens in falling order, odds as they are, rank 4 in no group.
    const int color = world.rank() == 4 ? -1 : world.rank() % 2;
    const int key = color == 0 ? -world.rank() : 0;
    auto group = world.Split(color, key);
    ASSERT_THAT(group, IsOk());
    if (color < 0) {
      EXPECT_FALSE((*group)->is_member());
      return;
    }
    EXPECT_THAT(Gathered(**group, world.rank()),
                color == 0 ? ElementsAre(2, 0) : ElementsAre(1, 3));
    EXPECT_THAT((*group)->Barrier(), IsOk());
  });
}

TEST(NewGroupTest, TheTimeoutIsInherited) {
  RunLocalRanks(
      2,
      [](ProcessGroup& world) {
        auto inherited = world.NewGroup({0, 1});
        auto own = world.NewGroup({0, 1}, {.timeout = absl::Seconds(7)});
        ASSERT_THAT(inherited, IsOk());
        ASSERT_THAT(own, IsOk());
        EXPECT_EQ((*inherited)->timeout(), absl::Seconds(33));
        EXPECT_EQ((*own)->timeout(), absl::Seconds(7));
        EXPECT_THAT(world.Barrier(), IsOk());
      },
      {.timeout = absl::Seconds(33)});
}

TEST(NewGroupTest, RefusesBadListsAndStaysUsable) {
  struct Case {
    std::vector<int> ranks;
    const char* text;
  };
  const std::vector<Case> cases = {
      {{}, "the list of ranks is empty"},
      {{0, 2}, "rank 2 is out of range, expected 0 to 1"},
      {{-1, 0}, "rank -1 is out of range"},
      {{0, 0}, "rank 0 is named twice"},
      {{1, 0}, "rank 0 comes after rank 1, expected ascending order"},
  };
  RunLocalRanks(2, [&](ProcessGroup& world) {
    for (const Case& bad : cases) {
      const auto group = world.NewGroup(bad.ranks);
      EXPECT_THAT(group, StatusIs(absl::StatusCode::kInvalidArgument,
                                  HasSubstr(bad.text)));
      EXPECT_EQ(GetErrorInfo(group.status()).operation, "new_group");
    }
    EXPECT_THAT(world.NewGroup({0, 1}, {.timeout = absl::ZeroDuration()}),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(world.Barrier(), IsOk());
  });
}

TEST(NewGroupTest, SurvivorsOfAFailureGoOn) {
  RunLocalRanks(3, [](ProcessGroup& world) {
    if (world.rank() == 1) return;  // It leaves; the others do not know yet.
    EXPECT_THAT(world.Barrier(), StatusIs(absl::StatusCode::kUnavailable,
                                          HasSubstr("rank 1: left")));
    auto survivors = world.NewGroup({0, 2});
    ASSERT_THAT(survivors, IsOk());
    EXPECT_THAT(Gathered(**survivors, world.rank()), ElementsAre(0, 2));
    EXPECT_THAT((*survivors)->Barrier(), IsOk());
  });
}

TEST(NewGroupTest, AMissingMemberIsNamed) {
  RunLocalRanks(2, [](ProcessGroup& world) {
    if (world.rank() == 0) {
      EXPECT_THAT(
          world.NewGroup({0, 1}, {.timeout = absl::Milliseconds(50)}),
          StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1")));
    }
    EXPECT_THAT(world.Barrier(), IsOk());
  });
}

}  // namespace
}  // namespace sherd
