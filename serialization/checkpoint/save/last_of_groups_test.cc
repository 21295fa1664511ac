#include "sherd/serialization/checkpoint/save/last_of_groups.h"

#include <memory>
#include <optional>

#include "gtest/gtest.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::RunLocalRanks;

using Values = LastOfGroups<std::shared_ptr<const int>>;

void Keep(Values& values, const std::shared_ptr<ProcessGroup>& group,
          int value) {
  values.Keep(group, std::make_shared<const int>(value),
              [value](const auto& kept) { return *kept == value; });
}

std::optional<int> Find(Values& values,
                        const std::shared_ptr<ProcessGroup>& group, int value) {
  const auto found =
      values.Find(group, [value](const auto& kept) { return *kept == value; });
  return found ? std::optional<int>(**found) : std::nullopt;
}

TEST(LastOfGroupsTest, TheLeastRecentlyUsedIsDropped) {
  RunLocalRanks(1, [&](ProcessGroup&) {
    Values values;
    const auto group = *DefaultGroup();
    constexpr int kValues = static_cast<int>(Values::kPerGroup);
    for (int i = 0; i < kValues; ++i) Keep(values, group, i);
    // Of these, the second is then the one that was not used for longest; one
    // that is kept again takes no other place.
    EXPECT_EQ(Find(values, group, 0), 0);
    Keep(values, group, 2);
    Keep(values, group, 100);
    EXPECT_EQ(Find(values, group, 1), std::nullopt);
    for (const int i : {0, 2, kValues - 1, 100}) {
      EXPECT_EQ(Find(values, group, i), i);
    }
  });
}

TEST(LastOfGroupsTest, EachGroupHasItsOwnUntilItIsGone) {
  RunLocalRanks(1, [&](ProcessGroup& all) {
    Values values;
    const auto group = *DefaultGroup();
    SHERD_ASSERT_OK_AND_ASSIGN(std::shared_ptr<ProcessGroup> other,
                               all.NewGroup({0}));
    const auto value = std::make_shared<const int>(1);
    const std::weak_ptr<const int> kept = value;
    values.Keep(other, value, [](const auto&) { return false; });
    EXPECT_EQ(Find(values, group, 1), std::nullopt);
    EXPECT_EQ(Find(values, other, 1), 1);
    other.reset();
    Keep(values, group, 2);
    EXPECT_EQ(kept.use_count(), 1);
  });
}

}  // namespace
}  // namespace sherd
