#ifndef SHERD_CORE_SHARDING_SHARD_VALIDATION_H_
#define SHERD_CORE_SHARDING_SHARD_VALIDATION_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/sharding/shard_metadata.h"

namespace sherd {

// Checks that every shard is valid by itself, that all have the same number of
// dimensions, and that no two have an element in common. Empty shards overlap
// nothing.
//   kInvalidArgument  "Found inconsistent ranks for shards", "Shards … and …
//                     overlap" with both shards, or ShardMetadata::Validate.
//
// Cost. With n shards in d dimensions, O(n * d) if they form a grid, however
// uneven; otherwise O(n log n) for d <= 2 and O(n log^d n) for more. Never
// quadratic.
absl::Status ValidateNonOverlapping(absl::Span<const ShardMetadata> shards);

// Checks that shards which do not overlap hold exactly the elements of a tensor
// of `size`.
//   kInvalidArgument  "Rank of tensor is D, but shards rank is N"; "Shard
//   offset
//                     … and length … exceeds tensor dim: … for shard …", for
//                     shards that are not empty; "does not match tensor
//                     volume", when elements are missing.
//
// Cost. O(n * d).
absl::Status ValidateCover(absl::Span<const ShardMetadata> shards,
                           absl::Span<const int64_t> size);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARD_VALIDATION_H_
