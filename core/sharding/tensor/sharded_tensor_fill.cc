#include "sherd/core/sharding/sharded_tensor_fill.h"

#include "sherd/core/sharding/tensor/sharded_tensor_access.h"

namespace sherd {

absl::Status FillLocalShards(ShardedTensor& tensor,
                             absl::FunctionRef<absl::Status(Tensor&)> fill) {
  return internal::FillShards(tensor.local_shards(), fill);
}

absl::Status FillRandomly(ShardedTensor& tensor, const RandomOptions& options,
                          DrawShard draw) {
  if (!tensor.defined()) return internal::NotCreated("random fill");
  return internal::ShardedTensorAccess::FillRandomly(tensor, options, draw);
}

}  // namespace sherd
