#ifndef SHERD_CORE_SHARDING_SHARD_FILL_H_
#define SHERD_CORE_SHARDING_SHARD_FILL_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// Which numbers a random fill draws.
enum class RandomStream {
  // Each local shard in turn from this rank's generator, as if it were a tensor
  // of its own: ranks whose generators were seeded alike draw alike. Refused
  // where a box has replicas, which each of their ranks would draw anew.
  kPerRank,
  // Each element by its index in the global tensor: ranks with equal generators
  // together hold the same tensor in every layout and world size.
  kGlobal,
};

struct RandomOptions {
  RandomStream stream = RandomStream::kPerRank;
  // Null: DefaultGenerator().
  Generator* generator = nullptr;
};

// Draws random numbers: FillUniform or FillNormal with its distribution.
// `region` is null for a draw that depends on nothing but the shard.
using DrawShard = absl::FunctionRef<absl::Status(
    Tensor& shard, Generator& generator, const RandomRegion* region)>;

namespace internal {

// What sharded_tensor_fill.h says, for the local shards of a tensor.
absl::Status FillShards(absl::Span<const Shard> shards,
                        absl::FunctionRef<absl::Status(Tensor&)> fill);
absl::Status FillShardsRandomly(absl::Span<const Shard> shards,
                                const ShardedTensorMetadata& metadata,
                                const RandomOptions& options, DrawShard draw);

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARD_FILL_H_
