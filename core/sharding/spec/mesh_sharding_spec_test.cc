#include "sherd/core/sharding/mesh_sharding_spec.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/spec/shard_validation.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

DeviceMesh Mesh(Dims shape, const std::vector<int>& ranks) {
  return {std::move(shape), PlacementsOn(ranks)};
}

// Offset, size and rank of each shard of a tensor of one dimension.
std::vector<std::vector<int64_t>> Parts(const MeshShardingSpec& spec,
                                        int64_t size) {
  std::vector<std::vector<int64_t>> parts;
  const auto metadata = spec.BuildMetadata({size}, {}).value();
  for (const ShardMetadata& shard : metadata.shards) {
    parts.push_back(
        {shard.offsets[0], shard.sizes[0], *shard.placement->rank()});
  }
  return parts;
}

TEST(MeshShardingSpecTest, CutsRowsAndColumnsInAnyOrderOfRanks) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto spec,
      MeshShardingSpec::Create(Mesh({2, 2}, {3, 0, 7, 1}), {{0}, {1}}));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensorMetadata metadata,
                             spec->BuildMetadata({5, 3}, {}));
  EXPECT_THAT(metadata.shards,
              ElementsAre(ShardMetadata{{0, 0}, {3, 2}, Placement("rank:3")},
                          ShardMetadata{{0, 2}, {3, 1}, Placement("rank:0")},
                          ShardMetadata{{3, 0}, {2, 2}, Placement("rank:7")},
                          ShardMetadata{{3, 2}, {2, 1}, Placement("rank:1")}));
  EXPECT_EQ(metadata.size, (Dims{5, 3}));
  EXPECT_FALSE(spec->has_replicas());
}

TEST(MeshShardingSpecTest, MakesReplicasAlongDimensionsThatCutNothing) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto spec,
      MeshShardingSpec::Create(Mesh({2, 3}, {0, 1, 2, 3, 4, 5}), {{}, {0}}));
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensorMetadata metadata,
                             spec->BuildMetadata({4, 3}, {}));
  ASSERT_EQ(metadata.shards.size(), 6u);
  for (int rank = 0; rank < 6; ++rank) {
    const bool left = rank < 3;
    EXPECT_EQ(
        metadata.shards[static_cast<size_t>(rank)],
        (ShardMetadata{
            {0, left ? 0 : 2}, {4, left ? 2 : 1}, Placement::OnRank(rank)}));
  }
  EXPECT_TRUE(spec->has_replicas());
  EXPECT_THAT(ValidateNonOverlapping(metadata.shards, Replicas::kAllowed),
              IsOk());
  EXPECT_THAT(ValidateCover(metadata.shards, {4, 3}, Replicas::kAllowed),
              IsOk());
  EXPECT_THAT(ValidateNonOverlapping(metadata.shards),
              StatusIs(kInvalid, "overlap"));
}

TEST(MeshShardingSpecTest, CutsOneDimensionByTwoOfTheMeshInTheOrderGiven) {
  const DeviceMesh mesh = Mesh({2, 2}, {0, 1, 2, 3});
  SHERD_ASSERT_OK_AND_ASSIGN(const auto left_to_right,
                             MeshShardingSpec::Create(mesh, {{0, 1}}));
  EXPECT_THAT(Parts(*left_to_right, 5),
              ElementsAre(ElementsAre(0, 2, 0), ElementsAre(2, 1, 1),
                          ElementsAre(3, 1, 2), ElementsAre(4, 1, 3)));
  // DTensor calls this a strided shard and refuses it for 5 elements.
  SHERD_ASSERT_OK_AND_ASSIGN(const auto right_to_left,
                             MeshShardingSpec::Create(mesh, {{1, 0}}));
  EXPECT_THAT(Parts(*right_to_left, 5),
              ElementsAre(ElementsAre(0, 2, 0), ElementsAre(3, 1, 1),
                          ElementsAre(2, 1, 2), ElementsAre(4, 1, 3)));
  // Not what one chunk rule over four places gives: 2, 2, 1, 0.
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto chunks, ChunkShardingSpec::Create(0, PlacementsOnRanks(4)));
  EXPECT_FALSE(*chunks == *left_to_right);
}

TEST(MeshShardingSpecTest, TakesThePlacementsOfDTensor) {
  const DeviceMesh mesh = Mesh({2, 2, 2}, {7, 6, 5, 4, 3, 2, 1, 0});
  const auto spec = [&](std::vector<MeshPlacement> placements) {
    return MeshShardingSpec::FromPlacements(mesh, placements).value();
  };
  const auto cuts = [&](std::vector<std::vector<int>> list) {
    return MeshShardingSpec::Create(mesh, std::move(list)).value();
  };
  const MeshPlacement replicate = MeshPlacement::Replicate();
  EXPECT_EQ(*spec({replicate, replicate, replicate}), *cuts({}));
  EXPECT_EQ(
      *spec({MeshPlacement::Shard(1), replicate, MeshPlacement::Shard(0)}),
      *cuts({{2}, {0}}));
  EXPECT_EQ(*spec({MeshPlacement::Shard(1), MeshPlacement::Shard(0),
                   MeshPlacement::Shard(1)}),
            *cuts({{1}, {0, 2}}));
  // A negative dimension is the same shards.
  const auto last = spec({MeshPlacement::Shard(-1), replicate, replicate});
  EXPECT_FALSE(*last == *cuts({{}, {0}}));
  EXPECT_EQ(last->BuildMetadata({4, 6}, {}).value(),
            cuts({{}, {0}})->BuildMetadata({4, 6}, {}).value());
}

TEST(MeshShardingSpecTest, MixesNegativeAndPositiveNumbersOfOneDimension) {
  const auto spec = MeshShardingSpec::FromPlacements(
      Mesh({2, 2}, {0, 1, 2, 3}),
      {MeshPlacement::Shard(0), MeshPlacement::Shard(-1)});
  ASSERT_THAT(spec, IsOk());
  // On a tensor of one dimension both cut that: from left to right.
  EXPECT_THAT(Parts(**spec, 5),
              ElementsAre(ElementsAre(0, 2, 0), ElementsAre(2, 1, 1),
                          ElementsAre(3, 1, 2), ElementsAre(4, 1, 3)));
}

TEST(MeshShardingSpecTest, AlongOneDimensionIsTheChunkSpec) {
  for (const int64_t size : {0, 1, 2, 5, 9, 11, 12, 29}) {
    for (const int dim : {0, 1, -1}) {
      const Dims tensor = {size, size + 1};
      SHERD_ASSERT_OK_AND_ASSIGN(
          const auto chunks,
          ChunkShardingSpec::Create(dim, PlacementsOn({3, 1, 0, 2})));
      SHERD_ASSERT_OK_AND_ASSIGN(
          const auto mesh,
          MeshShardingSpec::FromPlacements(Mesh({4}, {3, 1, 0, 2}),
                                           {MeshPlacement::Shard(dim)}));
      EXPECT_EQ(chunks->BuildMetadata(tensor, {}).value(),
                mesh->BuildMetadata(tensor, {}).value());
    }
  }
}

// The indices of one dimension, cut the way torch.chunk cuts lists, but with
// the empty chunks at the end.
std::vector<int64_t> ChunkOf(const std::vector<int64_t>& list, int64_t count,
                             int64_t index) {
  const int64_t n = static_cast<int64_t>(list.size());
  const int64_t length = (n + count - 1) / count;
  std::vector<int64_t> chunk;
  for (int64_t i = length * index; i < std::min(n, length * (index + 1)); ++i) {
    chunk.push_back(list[static_cast<size_t>(i)]);
  }
  return chunk;
}

struct RandomMeshCase {
  DeviceMesh mesh;
  std::vector<std::vector<int>> cuts;
  Dims size;
};

RandomMeshCase RandomCase(std::mt19937_64& random) {
  RandomMeshCase c;
  const size_t dims = 1 + random() % 3;
  for (size_t d = 0; d < dims; ++d) {
    c.size.push_back(static_cast<int64_t>(random() % 14));
  }
  c.cuts.resize(dims);
  int64_t places = 1;
  const size_t mesh_dims = random() % 4;
  for (size_t m = 0; m < mesh_dims; ++m) {
    c.mesh.shape.push_back(1 + static_cast<int64_t>(random() % 4));
    places *= c.mesh.shape.back();
    const size_t dim = random() % (dims + 1);
    if (dim == dims) continue;
    std::vector<int>& cuts = c.cuts[dim];
    cuts.insert(
        cuts.begin() + static_cast<int64_t>(random() % (cuts.size() + 1)),
        static_cast<int>(m));
  }
  std::vector<int> ranks(static_cast<size_t>(places));
  std::iota(ranks.begin(), ranks.end(), 5);
  std::shuffle(ranks.begin(), ranks.end(), random);
  c.mesh.placements = PlacementsOn(ranks);
  return c;
}

TEST(MeshShardingSpecTest, EqualsRepeatedCutsOfListsOfIndices) {
  const uint64_t seed = testing::RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    const RandomMeshCase c = RandomCase(random);
    SHERD_ASSERT_OK_AND_ASSIGN(const auto spec,
                               MeshShardingSpec::Create(c.mesh, c.cuts));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensorMetadata metadata,
                               spec->BuildMetadata(c.size, {}));
    EXPECT_THAT(ValidateNonOverlapping(metadata.shards, Replicas::kAllowed),
                IsOk());
    EXPECT_THAT(ValidateCover(metadata.shards, c.size, Replicas::kAllowed),
                IsOk());
    ASSERT_EQ(metadata.shards.size(), c.mesh.placements.size());
    for (size_t i = 0; i < metadata.shards.size(); ++i) {
      const ShardMetadata& shard = metadata.shards[i];
      EXPECT_EQ(shard.placement, c.mesh.placements[i]);
      for (size_t d = 0; d < c.size.size(); ++d) {
        std::vector<int64_t> indices(static_cast<size_t>(c.size[d]));
        std::iota(indices.begin(), indices.end(), 0);
        for (const int m : c.cuts[d]) {
          int64_t stride = 1;
          for (size_t k = c.mesh.shape.size() - 1; k > static_cast<size_t>(m);
               --k) {
            stride *= c.mesh.shape[k];
          }
          const int64_t count = c.mesh.shape[static_cast<size_t>(m)];
          indices =
              ChunkOf(indices, count, static_cast<int64_t>(i) / stride % count);
        }
        ASSERT_EQ(shard.sizes[d], static_cast<int64_t>(indices.size()));
        if (indices.empty()) continue;
        EXPECT_EQ(shard.offsets[d], indices.front());
        EXPECT_EQ(shard.offsets[d] + shard.sizes[d] - 1, indices.back());
      }
    }
  }
}

TEST(MeshShardingSpecTest, AGridCutsEveryDimensionByItsOwn) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const auto spec, MeshShardingSpec::Grid({2, 2}, PlacementsOnRanks(4)));
  EXPECT_EQ(*spec,
            **MeshShardingSpec::Create(Mesh({2, 2}, {0, 1, 2, 3}), {{0}, {1}}));
  EXPECT_THAT(spec->cuts(), ElementsAre(MeshShardingSpec::Cut{0, 0},
                                        MeshShardingSpec::Cut{1, 1}));
}

TEST(MeshShardingSpecTest, TakesAnySizeIncludingNoneAtAll) {
  const std::pair<Dims, Dims> cases[] = {
      {{}, {}},
      {{0}, {3}},
      {{1}, {4}},
      {{2, 0}, {2, 2}},
      {{7, 1, 4}, {2, 3, 2}},
      {{3, 3, 3, 3}, {1, 4, 2, 1}},
      // Dimensions of the tensor past the grid's stay whole.
      {{3, 4, 5}, {2}},
  };
  for (const auto& [size, grid] : cases) {
    int places = 1;
    for (const int64_t parts : grid) places *= static_cast<int>(parts);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const auto spec,
        MeshShardingSpec::Grid(grid, PlacementsOnRanks(places)));
    SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensorMetadata metadata,
                               spec->BuildMetadata(size, {}));
    EXPECT_EQ(metadata.shards.size(), static_cast<size_t>(places));
    EXPECT_THAT(ValidateNonOverlapping(metadata.shards), IsOk());
    EXPECT_THAT(ValidateCover(metadata.shards, size), IsOk());
  }
}

TEST(MeshShardingSpecTest, RefusesMeshesThatAreNone) {
  struct Case {
    DeviceMesh mesh;
    const char* phrase;
  };
  const int64_t huge = int64_t{1} << 40;
  const Case cases[] = {
      {{{2, 0}, {}}, "Invalid mesh shape: [2, 0]"},
      {{{-1, -1}, PlacementsOnRanks(1)}, "Invalid mesh shape: [-1, -1]"},
      {{{huge, huge}, PlacementsOnRanks(1)}, "Invalid mesh shape"},
      {{{2, 2}, PlacementsOnRanks(3)},
       "a mesh of shape [2, 2] has 4 places, but there are 3 placements"},
      {{{}, {}}, "has 1 places, but there are 0 placements"},
      {{{2}, {"rank:0", "rank:x"}}, "Could not parse remote_device"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(c.mesh.Validate(), StatusIs(kInvalid, c.phrase));
    EXPECT_THAT(MeshShardingSpec::Create(c.mesh, {}),
                StatusIs(kInvalid, c.phrase));
  }
}

TEST(MeshShardingSpecTest, RefusesCutsThatAreNone) {
  const DeviceMesh mesh = Mesh({2, 2}, {0, 1, 2, 3});
  struct Case {
    std::vector<std::vector<int>> cuts;
    const char* phrase;
  };
  const Case cases[] = {
      {{{2}}, "Invalid mesh dim: 2 for a mesh of shape [2, 2]"},
      {{{0}, {-1}}, "Invalid mesh dim: -1"},
      {{{0, 0}}, "mesh dim 0 cuts twice"},
      {{{0, 1}, {1}}, "mesh dim 1 cuts twice"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(MeshShardingSpec::Create(mesh, c.cuts),
                StatusIs(kInvalid, c.phrase));
  }
  EXPECT_THAT(MeshShardingSpec::FromPlacements(mesh, {MeshPlacement::Shard(0)}),
              StatusIs(kInvalid, "needs 2 mesh placements"));
}

TEST(MeshShardingSpecTest, RefusesReplicasInOnePlace) {
  EXPECT_THAT(MeshShardingSpec::Create(Mesh({2, 2}, {0, 1, 0, 2}), {{1}}),
              StatusIs(kInvalid,
                       "places 0 and 2 of the mesh DeviceMesh([2, 2], "
                       "[rank:0/cpu, rank:1/cpu, rank:0/cpu, rank:2/cpu]) "
                       "would hold replicas on the same rank:0/cpu"));
  // Several shards of one rank are not replicas, and two devices are two
  // places.
  EXPECT_THAT(MeshShardingSpec::Create(Mesh({2, 2}, {0, 0, 1, 2}), {{1}}),
              IsOk());
  EXPECT_THAT(
      MeshShardingSpec::Create({{2}, {"rank:0/cuda:0", "rank:0/cuda:1"}}, {}),
      IsOk());
}

TEST(MeshShardingSpecTest, RefusesSizesThatItDoesNotFit) {
  const auto build = [](const MeshPlacement& placement, const Dims& size) {
    return MeshShardingSpec::FromPlacements(Mesh({2}, {0, 1}), {placement})
        .value()
        ->BuildMetadata(size, {})
        .status();
  };
  EXPECT_THAT(build(MeshPlacement::Shard(2), {4, 4}),
              StatusIs(kInvalid, "Invalid sharding dim: 2"));
  EXPECT_THAT(build(MeshPlacement::Shard(-3), {4, 4}),
              StatusIs(kInvalid, "Invalid sharding dim: -3"));
  EXPECT_THAT(build(MeshPlacement::Shard(0), {}),
              StatusIs(kInvalid, "Invalid sharding dim: 0"));
  EXPECT_THAT(build(MeshPlacement::Shard(0), {-4, 4}), StatusIs(kInvalid));
  EXPECT_THAT(
      build(MeshPlacement::Shard(0), {int64_t{1} << 40, int64_t{1} << 40}),
      StatusIs(kInvalid));
  EXPECT_THAT(build(MeshPlacement::Replicate(), {}), IsOk());
}

TEST(MeshShardingSpecTest, EqualityAndTextLookAtMeshAndCuts) {
  const DeviceMesh mesh = Mesh({2, 2}, {0, 1, 2, 3});
  const auto make = [](const DeviceMesh& m,
                       std::vector<std::vector<int>> cuts) {
    return MeshShardingSpec::Create(m, std::move(cuts)).value();
  };
  const auto spec = make(mesh, {{0, 1}});
  EXPECT_EQ(*spec, *make(mesh, {{0, 1}}));
  EXPECT_EQ(*spec, *make(mesh, {{0, 1}, {}}));
  EXPECT_FALSE(*spec == *make(mesh, {{1, 0}}));
  EXPECT_FALSE(*spec == *make(mesh, {{}, {0, 1}}));
  EXPECT_FALSE(*spec == *make(Mesh({2, 2}, {0, 1, 3, 2}), {{0, 1}}));
  EXPECT_FALSE(*spec == *make(Mesh({2, 2, 1}, {0, 1, 2, 3}), {{0, 1}}));
  EXPECT_EQ(make(mesh, {{0}, {1}})->ToString(),
            "MeshShardingSpec(DeviceMesh([2, 2], [rank:0/cpu, rank:1/cpu, "
            "rank:2/cpu, rank:3/cpu]), cuts=[0: 0; 1: 1])");
  EXPECT_THAT(spec->ToString(), ::testing::EndsWith("cuts=[0: 0, 1])"));
}

TEST(MeshShardingSpecTest, GoesToOtherPlaces) {
  const auto spec =
      MeshShardingSpec::Create(Mesh({2, 2}, {0, 1, 2, 3}), {{1}}).value();
  const ShardingSpecPtr moved =
      spec->WithPlacements([](const Placement& placement) {
        return Placement::OnRank(*placement.rank() + 4,
                                 {DeviceType::kCuda, *placement.rank()});
      });
  ASSERT_NE(moved, nullptr);
  EXPECT_EQ(moved->ToString(),
            "MeshShardingSpec(DeviceMesh([2, 2], [rank:4/cuda:0, "
            "rank:5/cuda:1, rank:6/cuda:2, rank:7/cuda:3]), cuts=[0: 1])");
  EXPECT_EQ(spec->WithPlacements(
                [](const Placement&) { return Placement("rank:0"); }),
            nullptr);
}

}  // namespace
}  // namespace sherd
