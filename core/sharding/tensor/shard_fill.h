#ifndef SHERD_CORE_SHARDING_TENSOR_SHARD_FILL_H_
#define SHERD_CORE_SHARDING_TENSOR_SHARD_FILL_H_

#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// The random numbers that a fill draws.
enum class RandomStream {
  // Each element by its index in the global tensor: ranks with equal generators
  // together hold the same tensor in every layout and world size, and replicas
  // are alike. Default generators are equal unless a rank was seeded
  // differently
  // or drew more numbers. If they are not, every element is still random,
  // but replicas differ: the next collective that takes such a tensor returns
  // kInvalidArgument on all ranks.
  kGlobal,
  // Each local shard in turn from this rank's generator, as if it were a tensor
  // of its own: ranks whose generators are equal draw the same numbers. Refused
  // for a tensor with replicas, which each of their ranks would draw anew.
  kPerRank,
};

struct RandomOptions {
  RandomStream stream = RandomStream::kGlobal;
  // Null: DefaultGenerator().
  Generator* generator = nullptr;
};

// Draws random numbers: FillUniform or FillNormal with its distribution.
// `region` is null for a draw that depends on nothing but the shard.
using DrawShard = absl::FunctionRef<absl::Status(
    Tensor& shard, Generator& generator, const RandomRegion* region)>;

namespace internal {

// As in sharded_tensor_fill.h, for the local shards of a tensor.
absl::Status FillShards(absl::Span<const Shard> shards,
                        absl::FunctionRef<absl::Status(Tensor&)> fill);
// Returns the state of the generator before the fill for a tensor with
// replicas, whose ranks must have the same state.
absl::StatusOr<std::optional<Generator::State>> FillShardsRandomly(
    absl::Span<const Shard> shards, const ShardedTensorMetadata& metadata,
    const RandomOptions& options, DrawShard draw);

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_TENSOR_SHARD_FILL_H_
