#ifndef SHERD_CORE_SHARDING_KITS_PLACED_FIXTURE_H_
#define SHERD_CORE_SHARDING_KITS_PLACED_FIXTURE_H_

#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::testing {

// What tests of sharded tensors say again and again, above any fixture for
// several ranks: placements on the device that the target's backend works with,
// which is a GPU of its own for each rank with nccl, as far as there are as
// many, and the CPU otherwise.
template <typename Fixture>
class PlacedFixture : public Fixture {
 protected:
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

  ShardingSpecPtr Chunks(int dim) {
    return ChunkShardingSpec::Create(dim, OnAllRanks()).value();
  }

  ShardingSpecPtr Chunks(int dim, const std::vector<int>& ranks) {
    return ChunkShardingSpec::Create(dim, At(ranks)).value();
  }
};

}  // namespace sherd::testing

#endif  // SHERD_CORE_SHARDING_KITS_PLACED_FIXTURE_H_
