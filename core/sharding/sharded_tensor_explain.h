#ifndef SHERD_CORE_SHARDING_SHARDED_TENSOR_EXPLAIN_H_
#define SHERD_CORE_SHARDING_SHARDED_TENSOR_EXPLAIN_H_

#include "absl/status/statusor.h"
#include "sherd/core/sharding/plan/plan_report.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"

namespace sherd {

// Predicts the work of tensor.Reshard(target, options) on all ranks: bytes,
// messages, memory, and the ratio to the minimum. Not collective; no data
// moves.
//   kFailedPrecondition  The tensor was not created or has no group.
// and the errors of Reshard about `target`.
absl::StatusOr<PlanReport> ExplainReshard(const ShardedTensor& tensor,
                                          const ShardingSpecPtr& target,
                                          const ReshardOptions& options = {});

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDED_TENSOR_EXPLAIN_H_
