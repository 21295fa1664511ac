#ifndef SHERD_CORE_SHARDING_RANDOM_LAYOUTS_H_
#define SHERD_CORE_SHARDING_RANDOM_LAYOUTS_H_

#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::testing {

// Layouts for property tests.

// SHERD_TEST_SEED if it is set, otherwise another number each time; printed, so
// that a failure can be repeated.
uint64_t RandomSeed();

// Up to `max_dims` dimensions and about `max_elements` elements; often uneven,
// sometimes empty, sometimes a scalar.
Dims RandomSize(int max_dims, int64_t max_elements, std::mt19937_64& random);

// Shards that cover a tensor of `size`: a grid with random cuts, boxes from
// cutting the tensor in two again and again, or everything on one rank; with
// empty boxes among them, in any order, on any of `ranks` ranks, of which some
// may get none and others several.
std::vector<ShardMetadata> RandomShards(absl::Span<const int64_t> size,
                                        int ranks, std::mt19937_64& random);

// A spec of either kind for tensors of `size`.
ShardingSpecPtr RandomSpec(absl::Span<const int64_t> size, int ranks,
                           std::mt19937_64& random);

}  // namespace sherd::testing

#endif  // SHERD_CORE_SHARDING_RANDOM_LAYOUTS_H_
