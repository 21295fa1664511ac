#include "sherd/core/sharding/plan/replica_choice.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd::internal {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Le;

// Box `offset` to `offset` + 1 on the ranks from `first` on.
void AddReplicas(int64_t offset, int first, int count,
                 std::vector<PlacedBox>& boxes) {
  for (int i = 0; i < count; ++i) boxes.push_back({{{offset}, {1}}, first + i});
}

TEST(ReplicaChoiceTest, ABoxWithoutReplicasIsItsOwnChoice) {
  const std::vector<PlacedBox> from = {{{{0}, {1}}, 4}, {{{1}, {1}}, 5}};
  const std::vector<PlacedBox> to = {{{{0}, {2}}, 0}};
  ReplicaChoice choice(from, to, {});
  const int second = choice.Add({1});
  const int first = choice.Add({0});
  choice.Prepare();
  EXPECT_EQ(choice.Choose(first, 0), 0);
  EXPECT_EQ(choice.Choose(second, 0), 1);
}

TEST(ReplicaChoiceTest, BoxesWithOneDestinationBeginTheirTurnsElsewhere) {
  std::vector<PlacedBox> from;
  for (int64_t i = 0; i < 6; ++i) AddReplicas(i, 0, 3, from);
  const std::vector<PlacedBox> to = {{{{0}, {6}}, 9}};
  ReplicaChoice choice(from, to, {});
  std::vector<int> boxes, reads(3);
  for (int i = 0; i < 6; ++i) {
    boxes.push_back(choice.Add({3 * i, 3 * i + 1, 3 * i + 2}));
  }
  choice.Prepare();
  for (const int box : boxes) ++reads[from[choice.Choose(box, 0)].rank];
  EXPECT_THAT(reads, ElementsAre(2, 2, 2));
}

TEST(ReplicaChoiceTest, DecidesAlikeWhateverElseIsAsked) {
  std::vector<PlacedBox> from, to;
  for (int64_t i = 0; i < 4; ++i) AddReplicas(i, static_cast<int>(i), 3, from);
  for (int64_t i = 0; i < 12; ++i) to.push_back({{{i % 4}, {1}}, 20});
  ReplicaChoice all(from, to, {});
  std::vector<int> boxes;
  for (int i = 0; i < 4; ++i) {
    boxes.push_back(all.Add({3 * i, 3 * i + 1, 3 * i + 2}));
  }
  EXPECT_EQ(all.Add({0, 1, 2}), boxes[0]);
  all.Prepare();
  for (int i = 0; i < 4; ++i) {
    ReplicaChoice one(from, to, {});
    const int box = one.Add({3 * i, 3 * i + 1, 3 * i + 2});
    one.Prepare();
    for (int target = i; target < 12; target += 4) {
      EXPECT_EQ(one.Choose(box, target), all.Choose(boxes[i], target));
    }
  }
}

// Beyond what is counted.
TEST(ReplicaChoiceTest, SpreadsDestinationsOfLargeMovesEvenlyToo) {
  constexpr int kHolders = 5;
  constexpr int kTargets = 2400;
  std::vector<PlacedBox> from, to;
  AddReplicas(0, 0, kHolders, from);
  for (int64_t i = 1; i < 40'000; ++i) AddReplicas(i, 10, 1, from);
  for (int i = 0; i < kTargets; ++i) to.push_back({{{0}, {1}}, 11});
  ReplicaChoice choice(from, to, {});
  const int box = choice.Add({0, 1, 2, 3, 4});
  choice.Prepare();
  for (const int step : {1, 2, 3, 4, 5, 8, 10}) {
    std::vector<int> reads(kHolders);
    for (int i = 0; i < kTargets; i += step) {
      ++reads[from[choice.Choose(box, i)].rank];
    }
    const int even = kTargets / step / kHolders;
    EXPECT_THAT(reads, Each(AllOf(Ge(even * 9 / 10), Le(even * 11 / 10 + 1))))
        << "step " << step;
  }
}

}  // namespace
}  // namespace sherd::internal
