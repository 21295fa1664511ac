#ifndef SHERD_CORE_SHARDING_TENSOR_RESHARD_OBSERVER_H_
#define SHERD_CORE_SHARDING_TENSOR_RESHARD_OBSERVER_H_

#include "sherd/core/sharding/sharded_tensor.h"

namespace sherd::internal {

// Called on each rank after ShardedTensor::Reshard, with handles of the
// elements before and after: what is kept beside them follows the handle.
using ReshardObserver = void (*)(const ShardedTensor& before,
                                 const ShardedTensor& after);

// Replaces that of the process, which is null at first. Thread-safe.
void SetReshardObserver(ReshardObserver observer);

}  // namespace sherd::internal

#endif  // SHERD_CORE_SHARDING_TENSOR_RESHARD_OBSERVER_H_
