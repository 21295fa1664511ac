#ifndef SHERD_TESTING_RANDOM_LAYOUTS_H_
#define SHERD_TESTING_RANDOM_LAYOUTS_H_

#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::testing {

// Random layouts for property tests of operations on sharded tensors: saving,
// moving, computing. Link @sherd//testing:sharding.
//
//   std::mt19937_64 random(7);  // the same on all ranks
//   const Dims size = RandomSize(3, 1000, random);
//   const ShardingSpecPtr from = RandomSpec(size, world_size(), random);
//   const ShardingSpecPtr to = RandomSpec(size, world_size(), random);
//
// Ranks. No communication: ranks that pass equal arguments, with generators in
// equal states, get equal layouts. Use one seed for all of them, such as a
// constant of the test; RandomSeed() differs between processes.
//
// Errors. A layout that cannot be made (no ranks, a size that does not fit in
// 64 bits) ends the test program, since the test chose the arguments.
//
// Threads. Any, each with its own generator.

// Returns SHERD_TEST_SEED if it is set, otherwise a random number; prints it,
// so that a failure can be reproduced.
uint64_t RandomSeed();

// Returns SHERD_TEST_CASES if it is set, otherwise `fallback`.
int64_t CaseCount(int64_t fallback);

// Returns for each of `dims` a chunk spec over all of `placements`, in random
// order; the order of spec i depends on seed + i alone. A move from the first
// to another one changes the dimension, the order of ranks, or both. PyTorch's
// tests call this _chunk_sharding_specs_list_for_test; in a fixture,
// PlacedFixture::ChunkSpecs supplies the placements.
std::vector<ShardingSpecPtr> ChunkSpecs(absl::Span<const int> dims,
                                        uint64_t seed,
                                        absl::Span<const Placement> placements);

// Up to `max_dims` dimensions and about `max_elements` elements; often uneven,
// sometimes empty, sometimes a scalar.
Dims RandomSize(int max_dims, int64_t max_elements, std::mt19937_64& random);

// Shards that cover a tensor of `size`: a grid with random cuts, boxes from
// repeatedly cutting the tensor in two, or everything on one rank. They include
// empty boxes, and are in any order, on any of `ranks`, of which some may get
// none and others several.
std::vector<ShardMetadata> RandomShards(absl::Span<const int64_t> size,
                                        absl::Span<const int> ranks,
                                        std::mt19937_64& random);

// A chunk or an enumerable spec for tensors of `size`.
ShardingSpecPtr RandomSpec(absl::Span<const int64_t> size,
                           absl::Span<const int> ranks,
                           std::mt19937_64& random);

// A mesh of one to three dimensions over some of `ranks`, each at most once,
// that cuts any dimensions of `size` and has replicas where it cuts none.
ShardingSpecPtr RandomMesh(absl::Span<const int64_t> size,
                           absl::Span<const int> ranks,
                           std::mt19937_64& random);

// RandomShards and RandomSpec on ranks 0 to `ranks` - 1.
std::vector<ShardMetadata> RandomShards(absl::Span<const int64_t> size,
                                        int ranks, std::mt19937_64& random);
ShardingSpecPtr RandomSpec(absl::Span<const int64_t> size, int ranks,
                           std::mt19937_64& random);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_RANDOM_LAYOUTS_H_
