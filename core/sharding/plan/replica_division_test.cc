#include "sherd/core/sharding/plan/replica_division.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/box.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using ::testing::ElementsAre;

std::vector<DividedBox> Divide(const std::vector<PlacedBox>& boxes,
                               int64_t min_elements, std::vector<int64_t>& load,
                               const std::vector<int>& host_of_rank = {}) {
  return DivideReplicas(boxes, min_elements, absl::MakeSpan(load),
                        host_of_rank);
}

TEST(ReplicaDivisionTest, LeavesBoxesOfOneHolderAsTheyAre) {
  const std::vector<PlacedBox> boxes = {
      {{{0, 0}, {2, 3}}, 1}, {{{2, 0}, {1, 3}}, 1}, {{{9, 0}, {0, 3}}, 0}};
  std::vector<int64_t> load(2);
  const auto divided = Divide(boxes, 1, load);
  ASSERT_EQ(divided.size(), 3u);
  for (size_t i = 0; i < boxes.size(); ++i) {
    EXPECT_EQ(divided[i].box, i);
    EXPECT_EQ(divided[i].part.offsets, boxes[i].offsets);
    EXPECT_EQ(divided[i].part.sizes, boxes[i].sizes);
    EXPECT_EQ(divided[i].part.rank, boxes[i].rank);
  }
  EXPECT_THAT(load, ElementsAre(0, 9));
}

TEST(ReplicaDivisionTest, GivesSmallReplicasToTheRankWithTheLeastLoad) {
  // A scalar on all ranks, time and again.
  const std::vector<PlacedBox> scalar = {
      {{{}, {}}, 2}, {{{}, {}}, 0}, {{{}, {}}, 1}};
  std::vector<int64_t> load = {0, 5, 0};
  std::vector<int> keepers;
  for (int i = 0; i < 6; ++i) {
    const auto divided = Divide(scalar, 1, load);
    ASSERT_EQ(divided.size(), 1u);
    EXPECT_EQ(divided[0].part.rank, scalar[divided[0].box].rank);
    keepers.push_back(divided[0].part.rank);
  }
  EXPECT_THAT(keepers, ElementsAre(2, 0, 2, 0, 2, 0));
  EXPECT_THAT(load, ElementsAre(3, 5, 3));
}

// Three ranks on a host and one on another.
TEST(ReplicaDivisionTest, BalancesHostsBeforeTheirRanks) {
  const std::vector<int> hosts = {0, 0, 0, 1};
  const std::vector<PlacedBox> scalar = {
      {{{}, {}}, 0}, {{{}, {}}, 1}, {{{}, {}}, 2}, {{{}, {}}, 3}};
  std::vector<int64_t> load(4);
  for (int i = 0; i < 6; ++i)
    ASSERT_EQ(Divide(scalar, 1, load, hosts).size(), 1u);
  EXPECT_THAT(load, ElementsAre(1, 1, 1, 3));
  // What a rank alone holds counts for its host.
  load = {9, 0, 0, 0};
  for (int i = 0; i < 6; ++i)
    ASSERT_EQ(Divide(scalar, 1, load, hosts).size(), 1u);
  EXPECT_THAT(load, ElementsAre(9, 0, 0, 6));
}

TEST(ReplicaDivisionTest, SpreadsThePartsOfABoxOverHosts) {
  const std::vector<PlacedBox> boxes = {
      {{{0}, {12}}, 0}, {{{0}, {12}}, 1}, {{{0}, {12}}, 2}, {{{0}, {12}}, 3}};
  std::vector<int64_t> load(4);
  EXPECT_EQ(Divide(boxes, 6, load, {0, 0, 1, 1}).size(), 2u);
  EXPECT_THAT(load, ElementsAre(6, 0, 6, 0));
  // All hold parts of the same size where there are enough.
  load.assign(4, 0);
  EXPECT_EQ(Divide(boxes, 3, load, {0, 0, 0, 1}).size(), 4u);
  EXPECT_THAT(load, ElementsAre(3, 3, 3, 3));
}

TEST(ReplicaDivisionTest, CutsLargeReplicasAmongTheirHolders) {
  // One row of ten by three, of which no part has fewer than six elements.
  const std::vector<PlacedBox> boxes = {{{{4, 0, 0}, {1, 10, 3}}, 0},
                                        {{{4, 0, 0}, {1, 10, 3}}, 1},
                                        {{{4, 0, 0}, {1, 10, 3}}, 2},
                                        {{{4, 0, 0}, {1, 10, 3}}, 3}};
  std::vector<int64_t> load(4);
  const auto divided = Divide(boxes, 6, load);
  ASSERT_EQ(divided.size(), 4u);
  EXPECT_EQ(divided[0].part.sizes, (Dims{1, 3, 3}));
  EXPECT_EQ(divided[1].part.offsets, (Dims{4, 3, 0}));
  EXPECT_EQ(divided[3].part.offsets, (Dims{4, 8, 0}));
  EXPECT_EQ(divided[3].part.sizes, (Dims{1, 2, 3}));
  load.assign(4, 0);
  EXPECT_EQ(Divide(boxes, 7, load).size(), 3u);
  load.assign(4, 0);
  EXPECT_EQ(Divide(boxes, 31, load).size(), 1u);
}

// For any layout: the parts are inside the boxes of their ranks, and every
// element is in exactly one.
TEST(ReplicaDivisionTest, AssignsEveryElementToOneOwner) {
  const uint64_t seed = testing::RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const std::vector<int> ranks = {0, 1, 2, 3, 4, 5};
  for (int round = 0; round < 200; ++round) {
    const Dims size = testing::RandomSize(3, 400, random);
    const auto metadata =
        testing::RandomMesh(size, ranks, random)->BuildMetadata(size, {});
    ASSERT_TRUE(metadata.ok());
    const auto boxes = PlacedBoxes(metadata->shards, ranks);
    ASSERT_TRUE(boxes.ok());
    std::vector<int64_t> load(ranks.size());
    const int64_t min_elements = 1 + static_cast<int64_t>(random() % 40);
    int64_t elements = 0;
    std::vector<ShardMetadata> parts;
    for (const DividedBox& d : Divide(*boxes, min_elements, load)) {
      const PlacedBox& box = (*boxes)[d.box];
      EXPECT_EQ(d.part.rank, box.rank);
      for (size_t k = 0; k < size.size(); ++k) {
        EXPECT_GE(d.part.offsets[k], box.offsets[k]);
        EXPECT_LE(d.part.offsets[k] + d.part.sizes[k],
                  box.offsets[k] + box.sizes[k]);
      }
      EXPECT_TRUE(Volume(d.part) >= min_elements || d.part.sizes == box.sizes);
      elements += Volume(d.part);
      parts.push_back({d.part.offsets, d.part.sizes, {}});
    }
    EXPECT_EQ(elements, Volume(size));
    EXPECT_TRUE(EnumerableShardingSpec::Create(parts).ok());
    int64_t sum = 0;
    for (const int64_t own : load) sum += own;
    EXPECT_EQ(sum, elements);
  }
}

}  // namespace
}  // namespace sherd
