#ifndef SHERD_SHERD_H_
#define SHERD_SHERD_H_

// What @sherd has, in one include. What is linked beside it has headers of its
// own: "sherd/serialization/checkpoint.h", "sherd/testing/…".

#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/coalescer.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/object_collectives.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/tensor_collectives.h"
#include "sherd/core/comm/work.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/sharding/sharded_comparison.h"
#include "sherd/core/sharding/sharded_init.h"
#include "sherd/core/sharding/sharded_op_registry.h"
#include "sherd/core/sharding/sharded_ops.h"
#include "sherd/core/sharding/sharded_statistics.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharded_tensor_explain.h"
#include "sherd/core/sharding/sharded_tensor_fill.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/core/sharding/sharded_tensor_transfer.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/tensor_scatterer.h"
#include "sherd/core/sharding/validated_metadata.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/tensor.h"

#endif  // SHERD_SHERD_H_
