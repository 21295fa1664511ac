#ifndef SHERD_TESTING_SHARDED_MATCHERS_H_
#define SHERD_TESTING_SHARDED_MATCHERS_H_

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd::testing {

// Matchers of sharded tensors, as assert_sharded_tensor_equal of PyTorch: equal
// size and properties, sharding spec, metadata of all shards, number of local
// shards, and for each of these the metadata and the elements; and the number
// of remote shards, if both tensors have them.
//
//   EXPECT_THAT(loaded, ShardedTensorEq(saved));
//   ASSERT_THAT(loaded, OnAllRanks(group(), ShardedTensorEq(saved)));
//
// Not collective: a rank compares the elements of its own shards, and no rank
// waits for another. The second form (rank_matchers.h) is collective and fails
// on all ranks if it fails on one.
//
// A failure reports rank, shard and index:
//
//   which on rank 1 has the local shard 0, ShardMetadata(offsets=[5, 0], …),
//   which differs in 1 of 50 elements, at [0, 3], of the whole [5, 3]: …
//
// Lifetime and errors as in tensor_matchers.h. Two undefined sharded tensors
// match.

// Compares elements by the rule of TensorEq.
::testing::Matcher<const ShardedTensor&> ShardedTensorEq(
    absl::StatusOr<ShardedTensor> expected);

// Compares elements by the rule of TensorNear, by default with the tolerance of
// the expected tensor's dtype.
::testing::Matcher<const ShardedTensor&> ShardedTensorNear(
    absl::StatusOr<ShardedTensor> expected);
::testing::Matcher<const ShardedTensor&> ShardedTensorNear(
    absl::StatusOr<ShardedTensor> expected, const Tolerance& tolerance);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_SHARDED_MATCHERS_H_
