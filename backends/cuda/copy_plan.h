#ifndef SHERD_BACKENDS_CUDA_COPY_PLAN_H_
#define SHERD_BACKENDS_CUDA_COPY_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "sherd/backends/cuda/launch_plan.h"
#include "sherd/backends/device_abi.h"

namespace sherd::internal {

// Plans copies of boxes (sherd_device_v0.copy) that do not overlap: of any rank
// up to 64, with any strides, negative ones too; strides of sources may be 0.
// Element sizes are any number above 0. Boxes without elements access no
// memory.
//
// Returns null, or a description of the invalid argument; then the plan is
// empty.
//
// Cost. Dimensions of size 1 are dropped, the others ordered by destination
// stride and merged where both sides allow; then vectors of up to 16 bytes are
// used where both sides are aligned, and tiles in shared memory where the sides
// disagree on the innermost dimension. One launch for all boxes, and more only
// beyond 2^31 blocks; a single run of bytes is a copy without a launch.
const char* PlanCopies(const sherd_strided_copy_v0* copies, size_t num_copies,
                       LaunchPlan& plan);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_COPY_PLAN_H_
