#include "sherd/testing/random_layouts.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::testing {
namespace {

using ::testing::UnorderedElementsAreArray;

const ChunkShardingSpec& AsChunks(const ShardingSpecPtr& spec) {
  const auto* const chunks = dynamic_cast<const ChunkShardingSpec*>(spec.get());
  EXPECT_NE(chunks, nullptr) << spec->ToString();
  return *chunks;
}

TEST(ChunkSpecsTest, CutEachDimensionOverAllPlacements) {
  const std::vector<Placement> placements = PlacementsOnRanks(4);
  const std::vector<int> dims = {0, 1, -1};
  const std::vector<ShardingSpecPtr> specs = ChunkSpecs(dims, 5, placements);
  ASSERT_EQ(specs.size(), dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    EXPECT_EQ(AsChunks(specs[i]).dim(), dims[i]);
    EXPECT_THAT(AsChunks(specs[i]).placements(),
                UnorderedElementsAreArray(placements));
  }
  EXPECT_TRUE(ChunkSpecs({}, 5, placements).empty());
}

TEST(ChunkSpecsTest, FollowFromTheSeed) {
  const std::vector<Placement> placements = PlacementsOnRanks(4);
  const auto specs = ChunkSpecs({0, 0}, 5, placements);
  EXPECT_EQ(*ChunkSpecs({0, 0}, 5, placements)[1], *specs[1]);
  // Number i is the first one of seed + i.
  EXPECT_EQ(*ChunkSpecs({0}, 6, placements)[0], *specs[1]);
  std::set<std::string> orders;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    orders.insert(ChunkSpecs({0}, seed, placements)[0]->ToString());
  }
  EXPECT_EQ(orders.size(), 24u);
}

TEST(RandomSpecTest, CoversTheTensorAndFollowsFromTheGenerator) {
  const uint64_t seed = RandomSeed();
  std::mt19937_64 random(seed);
  std::mt19937_64 same(seed);
  for (int i = 0; i < 200; ++i) {
    const Dims size = RandomSize(4, 500, random);
    ASSERT_EQ(RandomSize(4, 500, same), size);
    const ShardingSpecPtr spec = RandomSpec(size, 3, random);
    ASSERT_EQ(*RandomSpec(size, 3, same), *spec);
    const auto metadata = spec->BuildMetadata(size, {});
    ASSERT_TRUE(metadata.ok()) << metadata.status();
    int64_t volume = 0;
    for (const ShardMetadata& shard : metadata->shards) {
      volume += Volume(shard);
      EXPECT_LT(shard.placement->rank().value(), 3);
    }
    EXPECT_EQ(volume, Volume(size));
  }
}

}  // namespace
}  // namespace sherd::testing
