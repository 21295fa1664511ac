#ifndef SHERD_CORE_SHARDING_SHARDED_TENSOR_FILL_H_
#define SHERD_CORE_SHARDING_SHARDED_TENSOR_FILL_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/tensor/shard_fill.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// The common loop of all functions that fill local shards.

// Calls `fill` for the tensor of each local shard in turn, but for those that
// have no data ("meta"), until one call fails; returns its status. Not
// collective.
absl::Status FillLocalShards(ShardedTensor& tensor,
                             absl::FunctionRef<absl::Status(Tensor&)> fill);

// Fills every local shard with `draw`, with the stream that `options` select.
// Not collective.
//
// Layout. kGlobal: each element is drawn by its index in the global tensor, and
// the generator advances by the whole tensor on every rank, even on ranks
// without shards or with shards without data; see FillUniform. kPerRank: each
// shard in turn from the rank's generator, as if it were a tensor of its own.
//
// Errors. Those of `draw`; with kGlobal the generator is then unchanged.
//   kInvalidArgument     kPerRank, and the tensor has replicas.
//   kUnimplemented       The dtype is neither floating-point nor complex.
//   kFailedPrecondition  The tensor was not created.
absl::Status FillRandomly(ShardedTensor& tensor, const RandomOptions& options,
                          DrawShard draw);

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDED_TENSOR_FILL_H_
