#ifndef SHERD_CORE_SHARDING_KITS_RANDOM_LAYOUTS_H_
#define SHERD_CORE_SHARDING_KITS_RANDOM_LAYOUTS_H_

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

// SHERD_TEST_CASES if it is set, otherwise `fallback`.
int64_t CaseCount(int64_t fallback);

// Up to `max_dims` dimensions and about `max_elements` elements; often uneven,
// sometimes empty, sometimes a scalar.
Dims RandomSize(int max_dims, int64_t max_elements, std::mt19937_64& random);

// Shards that cover a tensor of `size`: a grid with random cuts, boxes from
// cutting the tensor in two again and again, or everything on one rank; with
// empty boxes among them, in any order, on any of `ranks`, of which some may
// get none and others several.
std::vector<ShardMetadata> RandomShards(absl::Span<const int64_t> size,
                                        absl::Span<const int> ranks,
                                        std::mt19937_64& random);

// A chunk or an enumerable spec for tensors of `size`.
ShardingSpecPtr RandomSpec(absl::Span<const int64_t> size,
                           absl::Span<const int> ranks,
                           std::mt19937_64& random);

// A mesh of one to three dimensions over some of `ranks`, each at one place,
// that cuts any dimensions of `size` and has replicas where it cuts none.
ShardingSpecPtr RandomMesh(absl::Span<const int64_t> size,
                           absl::Span<const int> ranks,
                           std::mt19937_64& random);

// RandomShards and RandomSpec on the ranks from 0 to `ranks` - 1.
std::vector<ShardMetadata> RandomShards(absl::Span<const int64_t> size,
                                        int ranks, std::mt19937_64& random);
ShardingSpecPtr RandomSpec(absl::Span<const int64_t> size, int ranks,
                           std::mt19937_64& random);

}  // namespace sherd::testing

#endif  // SHERD_CORE_SHARDING_KITS_RANDOM_LAYOUTS_H_
