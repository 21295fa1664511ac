#ifndef SHERD_CORE_SHARDING_SPEC_SHARD_VALIDATION_H_
#define SHERD_CORE_SHARDING_SPEC_SHARD_VALIDATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/shard_metadata.h"

namespace sherd {

// Checks that every shard is valid by itself, that all have the same number of
// dimensions, and that no two have an element in common, except for replicas.
// Empty shards overlap nothing.
//   kInvalidArgument  "Found inconsistent ranks for shards"; "Shards … and …
//                     overlap", with the first shards that do.
//   other             As ShardMetadata::Validate.
//
// Cost. With n shards in d dimensions, O(n * d) if they form a grid, however
// uneven, or rows of bricks, in the usual orders; O(d * n log n) in any order,
// or if they were made by any other cuts; otherwise O(n log n) for d <= 2 and
// O(n log^d n) for more. Never quadratic. Replicas add O(n * d).
absl::Status ValidateNonOverlapping(absl::Span<const ShardMetadata> shards,
                                    Replicas replicas = Replicas::kRefused);

// Checks that shards which have passed ValidateNonOverlapping hold exactly the
// elements of a tensor of `size`; replicas count once.
//   kInvalidArgument  "Rank of tensor is D, but shards rank is N"; for shards
//                     that are not empty, "Shard offset … and length … exceeds
//                     tensor dim: … for shard …"; "does not match tensor
//                     volume", when elements are missing.
//   other             As ShardMetadata::Validate.
//
// Cost. O(n * d).
absl::Status ValidateCover(absl::Span<const ShardMetadata> shards,
                           absl::Span<const int64_t> size,
                           Replicas replicas = Replicas::kRefused);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SPEC_SHARD_VALIDATION_H_
