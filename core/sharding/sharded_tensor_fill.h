#ifndef SHERD_CORE_SHARDING_SHARDED_TENSOR_FILL_H_
#define SHERD_CORE_SHARDING_SHARDED_TENSOR_FILL_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/tensor/shard_fill.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// The one way to write to every local shard, for whatever fills.

// Calls `fill` for the tensor of each local shard in turn, but for those that
// have no data ("meta"), until one call fails; returns its status. Not
// collective.
absl::Status FillLocalShards(ShardedTensor& tensor,
                             absl::FunctionRef<absl::Status(Tensor&)> fill);

// Lets `draw` fill every local shard, with the stream that `options` say. Not
// collective.
//
// Layout. kGlobal: each element is drawn by its index in the global tensor, and
// the generator moves on by all of the tensor on every rank; see FillUniform. A
// rank without shards moves on too, and so do ranks whose shards have no data.
// kPerRank: each shard in turn from the rank's generator, as if it were a
// tensor of its own.
//
// Errors. What `draw` reports; with kGlobal the generator then is as it was.
//   kInvalidArgument     kPerRank, and the tensor has replicas.
//   kUnimplemented       The dtype is neither floating-point nor complex.
//   kFailedPrecondition  The tensor was not created.
absl::Status FillRandomly(ShardedTensor& tensor, const RandomOptions& options,
                          DrawShard draw);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDED_TENSOR_FILL_H_
