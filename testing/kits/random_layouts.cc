#include "sherd/testing/random_layouts.h"

#include <algorithm>
#include <iostream>
#include <numeric>
#include <utility>

#include "sherd/core/base/knobs.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"

namespace sherd::testing {
namespace {

int64_t Uniform(int64_t low, int64_t high, std::mt19937_64& random) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

Placement AnyOf(absl::Span<const int> ranks, std::mt19937_64& random) {
  const int64_t last = static_cast<int64_t>(ranks.size()) - 1;
  return Placement::OnRank(
      ranks[static_cast<size_t>(Uniform(0, last, random))]);
}

std::vector<int> FirstRanks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Ascending cuts from 0 to `size`; equal neighbours make empty parts.
std::vector<int64_t> RandomCuts(int64_t size, std::mt19937_64& random) {
  std::vector<int64_t> cuts = {0, size};
  const int64_t parts = Uniform(1, 4, random);
  for (int64_t i = 1; i < parts; ++i) cuts.push_back(Uniform(0, size, random));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

std::vector<ShardMetadata> WholeTensor(absl::Span<const int64_t> size) {
  return {{.offsets = Dims(size.size(), 0),
           .sizes = Dims(size.begin(), size.end())}};
}

std::vector<ShardMetadata> CutGrid(absl::Span<const int64_t> size,
                                   std::mt19937_64& random) {
  std::vector<ShardMetadata> shards = WholeTensor(size);
  for (size_t d = 0; d < size.size(); ++d) {
    const std::vector<int64_t> cuts = RandomCuts(size[d], random);
    std::vector<ShardMetadata> finer;
    for (const ShardMetadata& shard : shards) {
      for (size_t i = 1; i < cuts.size(); ++i) {
        ShardMetadata& part = finer.emplace_back(shard);
        part.offsets[d] = cuts[i - 1];
        part.sizes[d] = cuts[i] - cuts[i - 1];
      }
    }
    shards = std::move(finer);
  }
  return shards;
}

std::vector<ShardMetadata> CutAgainAndAgain(absl::Span<const int64_t> size,
                                            std::mt19937_64& random) {
  std::vector<ShardMetadata> shards = WholeTensor(size);
  if (size.empty()) return shards;
  const int64_t times = Uniform(1, 12, random);
  for (int64_t i = 0; i < times; ++i) {
    const size_t which = static_cast<size_t>(
        Uniform(0, static_cast<int64_t>(shards.size()) - 1, random));
    const size_t d = static_cast<size_t>(
        Uniform(0, static_cast<int64_t>(size.size()) - 1, random));
    ShardMetadata rest = shards[which];
    const int64_t at = Uniform(0, rest.sizes[d], random);
    shards[which].sizes[d] = at;
    rest.offsets[d] += at;
    rest.sizes[d] -= at;
    shards.push_back(rest);
  }
  return shards;
}

}  // namespace

uint64_t RandomSeed() {
  const auto given = GetIntKnob(Knob::kTestSeed, 0, INT64_MAX);
  const uint64_t seed = given.ok() && given->has_value()
                            ? static_cast<uint64_t>(**given)
                            : std::random_device()();
  std::cout << "SHERD_TEST_SEED=" << seed << std::endl;
  return seed;
}

int64_t CaseCount(int64_t fallback) {
  const auto given = GetIntKnob(Knob::kTestCases, 1, INT64_MAX);
  return given.ok() && given->has_value() ? **given : fallback;
}

std::vector<ShardingSpecPtr> ChunkSpecs(
    absl::Span<const int> dims, uint64_t seed,
    absl::Span<const Placement> placements) {
  std::vector<ShardingSpecPtr> specs;
  specs.reserve(dims.size());
  for (const int dim : dims) {
    std::mt19937_64 random(seed + specs.size());
    std::vector<Placement> order(placements.begin(), placements.end());
    std::shuffle(order.begin(), order.end(), random);
    specs.push_back(ChunkShardingSpec::Create(dim, std::move(order)).value());
  }
  return specs;
}

Dims RandomSize(int max_dims, int64_t max_elements, std::mt19937_64& random) {
  Dims size;
  const int64_t dims = Uniform(0, max_dims, random);
  int64_t left = max_elements;
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t n = Uniform(0, 19, random) == 0
                          ? 0
                          : Uniform(1, std::min<int64_t>(left, 24), random);
    size.push_back(n);
    left = std::max<int64_t>(left / std::max<int64_t>(n, 1), 1);
  }
  std::shuffle(size.begin(), size.end(), random);
  return size;
}

std::vector<ShardMetadata> RandomShards(absl::Span<const int64_t> size,
                                        absl::Span<const int> ranks,
                                        std::mt19937_64& random) {
  std::vector<ShardMetadata> shards;
  switch (Uniform(0, 4, random)) {
    case 0:
    case 1:
      shards = CutGrid(size, random);
      break;
    case 2:
    case 3:
      shards = CutAgainAndAgain(size, random);
      break;
    default:
      shards = WholeTensor(size);
  }
  for (ShardMetadata& shard : shards) shard.placement = AnyOf(ranks, random);
  std::shuffle(shards.begin(), shards.end(), random);
  return shards;
}

ShardingSpecPtr RandomSpec(absl::Span<const int64_t> size,
                           absl::Span<const int> ranks,
                           std::mt19937_64& random) {
  if (size.empty() || Uniform(0, 1, random) == 0) {
    return EnumerableShardingSpec::Create(RandomShards(size, ranks, random))
        .value();
  }
  const int64_t dims = static_cast<int64_t>(size.size());
  std::vector<Placement> placements = PlacementsOn(ranks);
  std::shuffle(placements.begin(), placements.end(), random);
  if (Uniform(0, 2, random) == 0) {
    const int64_t most = 2 * static_cast<int64_t>(ranks.size());
    placements.resize(static_cast<size_t>(Uniform(1, most, random)));
    for (Placement& placement : placements) placement = AnyOf(ranks, random);
  }
  return ChunkShardingSpec::Create(
             static_cast<int>(Uniform(-dims, dims - 1, random)), placements)
      .value();
}

ShardingSpecPtr RandomMesh(absl::Span<const int64_t> size,
                           absl::Span<const int> ranks,
                           std::mt19937_64& random) {
  DeviceMesh mesh;
  int64_t left = static_cast<int64_t>(ranks.size());
  const int64_t dims = Uniform(1, 3, random);
  for (int64_t d = 0; d < dims; ++d) {
    mesh.shape.push_back(Uniform(1, left, random));
    left /= mesh.shape.back();
  }
  std::shuffle(mesh.shape.begin(), mesh.shape.end(), random);
  std::vector<int> places(ranks.begin(), ranks.end());
  std::shuffle(places.begin(), places.end(), random);
  places.resize(static_cast<size_t>(NumElements(mesh.shape).value()));
  mesh.placements = PlacementsOn(places);
  const int64_t rank = static_cast<int64_t>(size.size());
  std::vector<MeshPlacement> placements;
  for (int64_t d = 0; d < dims; ++d) {
    if (rank == 0 || Uniform(0, 2, random) == 0) {
      placements.push_back(MeshPlacement::Replicate());
    } else {
      placements.push_back(MeshPlacement::Shard(
          static_cast<int>(Uniform(-rank, rank - 1, random))));
    }
  }
  return MeshShardingSpec::FromPlacements(mesh, placements).value();
}

std::vector<ShardMetadata> RandomShards(absl::Span<const int64_t> size,
                                        int ranks, std::mt19937_64& random) {
  return RandomShards(size, FirstRanks(ranks), random);
}

ShardingSpecPtr RandomSpec(absl::Span<const int64_t> size, int ranks,
                           std::mt19937_64& random) {
  return RandomSpec(size, FirstRanks(ranks), random);
}

}  // namespace sherd::testing
