#include "sherd/core/sharding/sharded_tensor_fill.h"

namespace sherd {

absl::Status FillLocalShards(ShardedTensor& tensor,
                             absl::FunctionRef<absl::Status(Tensor&)> fill) {
  return internal::FillShards(tensor.local_shards(), fill);
}

absl::Status FillRandomly(ShardedTensor& tensor, const RandomOptions& options,
                          DrawShard draw) {
  if (!tensor.defined()) {
    return absl::FailedPreconditionError(
        "random fill: the ShardedTensor was not created");
  }
  return internal::FillShardsRandomly(tensor.local_shards(), tensor.metadata(),
                                      options, draw);
}

}  // namespace sherd
