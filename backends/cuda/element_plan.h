#ifndef SHERD_BACKENDS_CUDA_ELEMENT_PLAN_H_
#define SHERD_BACKENDS_CUDA_ELEMENT_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "sherd/backends/cuda/launch_plan.h"
#include "sherd/backends/device_abi.h"

namespace sherd::internal {

// Plans of sherd_device_v0.fill, .random and .reduce. Each returns null, or a
// description of the invalid argument; then the plan is empty.

const char* PlanFill(const sherd_fill_v0& fill, LaunchPlan& plan);

const char* PlanRandom(const sherd_random_v0& random, LaunchPlan& plan);

// The number of blocks fills the device's `multiprocessors`.
const char* PlanReduce(int32_t dtype, int32_t reduction, void* out,
                       const void* const* ins, int32_t num_ins, uint64_t count,
                       int32_t divisor, int multiprocessors, LaunchPlan& plan);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_ELEMENT_PLAN_H_
