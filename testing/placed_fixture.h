#ifndef SHERD_TESTING_PLACED_FIXTURE_H_
#define SHERD_TESTING_PLACED_FIXTURE_H_

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/random_layouts.h"

namespace sherd::testing {

// Helpers for tests of sharded tensors, on top of any fixture for several
// ranks: placements on the device that the target's backend works with, which
// with nccl is a GPU of its own for each rank, as far as there are enough, and
// the CPU otherwise. Link @sherd//testing:sharding.
//
//   class ReshardTest : public sherd::testing::PlacedFixture<
//                           sherd::testing::DistributedTest> {};
//
//   SHERD_DIST_TEST_F(ReshardTest, FromRowsToColumns) {
//     const auto specs = ChunkSpecs({0, 1}, /*seed=*/5);
//     …
//   }
//
// Ranks. Nothing is sent: equal calls have equal results on all ranks, except
// Mine(), whose result is on this rank's device.
//
// Needs the group of the test (WithComms): without it, the test program ends.
// Ranks are world ranks.
template <typename Fixture>
class PlacedFixture : public Fixture {
 protected:
  // The device of `rank`'s shards.
  Device DeviceOf(int rank) {
    const std::optional<Device> own = this->group().device();
    if (!own) return Device();
    const int devices =
        DeviceRuntime::For(own->type).value()->DeviceCount().value();
    return {own->type, rank % devices};
  }

  // The tensor on this rank's device.
  absl::StatusOr<Tensor> Mine(absl::StatusOr<Tensor> tensor) {
    if (!tensor.ok()) return tensor;
    return tensor->To(DeviceOf(this->rank()));
  }

  // Placements on a rank, on several in that order, or on all, each on its
  // device.
  Placement At(int rank) { return Placement::OnRank(rank, DeviceOf(rank)); }

  std::vector<Placement> At(const std::vector<int>& ranks) {
    std::vector<Placement> placements;
    for (const int rank : ranks) placements.push_back(At(rank));
    return placements;
  }

  std::vector<Placement> OnAllRanks() {
    std::vector<int> ranks(static_cast<size_t>(this->world_size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return At(ranks);
  }

  // ChunkSpecs (random_layouts.h) over all ranks.
  std::vector<ShardingSpecPtr> ChunkSpecs(const std::vector<int>& dims,
                                          uint64_t seed) {
    return testing::ChunkSpecs(dims, seed, OnAllRanks());
  }

  // Chunks of a dimension, one for each of the ranks, in order.
  ShardingSpecPtr Chunks(int dim) {
    return ChunkShardingSpec::Create(dim, OnAllRanks()).value();
  }

  ShardingSpecPtr Chunks(int dim, const std::vector<int>& ranks) {
    return ChunkShardingSpec::Create(dim, At(ranks)).value();
  }
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_PLACED_FIXTURE_H_
