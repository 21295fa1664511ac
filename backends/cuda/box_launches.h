#ifndef SHERD_BACKENDS_CUDA_BOX_LAUNCHES_H_
#define SHERD_BACKENDS_CUDA_BOX_LAUNCHES_H_

#include <cstddef>

#include "sherd/backends/cuda/launch_plan.h"

namespace sherd::internal {

// The kernels for the two sizes of the parameter. `small` may be null; with
// `has_tables` the large one reads CopyParams::table_address.
struct BoxKernels {
  const char* small;
  const char* large;
  bool has_tables;
};

// Adds launches of plan.boxes(): one, unless there are more blocks than a
// launch has, or more boxes than a parameter has room for while has_tables is
// false. `header` is the parameter up to its table; its first two words,
// num_boxes and num_dims, are set here.
void AddBoxLaunches(const BoxKernels& kernels, const void* header,
                    size_t header_bytes, LaunchPlan& plan);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_BOX_LAUNCHES_H_
