#include "sherd/core/sharding/sharded_tensor_explain.h"

#include "absl/status/status.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"

namespace sherd {

absl::StatusOr<PlanReport> ExplainReshard(const ShardedTensor& tensor,
                                          const ShardingSpecPtr& target,
                                          const ReshardOptions& options) {
  const internal::ShardedTensorStatePtr& state =
      internal::ShardedTensorAccess::StateOf(tensor);
  if (state == nullptr) return internal::NotCreated("explain");
  if (state->group == nullptr) {
    return absl::FailedPreconditionError(
        "explain: the ShardedTensor has no process group to reshard in");
  }
  SHERD_ASSIGN_OR_RETURN(
      const internal::ShardedTensorStatePtr to,
      internal::MakeState(state->group, target, state->metadata.size,
                          state->metadata.properties, state->workers.lock()));
  PlanReportOptions report;
  report.element_size = SizeOf(tensor.dtype());
  report.world_size = state->group->size();
  report.max_staging_bytes = options.max_staging_bytes;
  report.host_of_rank = state->group->host_of_rank();
  report.direct = options.direct && state->group->peer_memory() != nullptr;
  return ExplainPlan(*state->boxes, *to->boxes, report);
}

}  // namespace sherd
