#ifndef SHERD_BACKENDS_CUDA_POOL_PLAN_H_
#define SHERD_BACKENDS_CUDA_POOL_PLAN_H_

#include "sherd/backends/cuda/launch_plan.h"
#include "sherd/backends/device_abi.h"

namespace sherd::internal {

// Plan of sherd_device_v0.pool_rows: one launch, or several for so many bags
// that one cannot count their units. Returns null, or a description of the
// invalid argument; then the plan is empty.
const char* PlanPoolRows(const sherd_pool_rows_v0& pool, LaunchPlan& plan);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_POOL_PLAN_H_
