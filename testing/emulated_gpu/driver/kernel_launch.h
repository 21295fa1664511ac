#ifndef SHERD_TESTING_EMULATED_GPU_DRIVER_KERNEL_LAUNCH_H_
#define SHERD_TESTING_EMULATED_GPU_DRIVER_KERNEL_LAUNCH_H_

#include <cstdint>
#include <optional>
#include <string>

#include "sherd/testing/emulated_gpu/driver/driver.h"

namespace sherd::testing {

// Whether there is a kernel of that name: those of backends/cuda.
bool IsKernel(const std::string& name);

// A launch with `grid` blocks, whose parameter is at `params`: it is copied.
StreamTask LaunchOf(const std::string& name, const void* params, uint32_t grid);

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_DRIVER_KERNEL_LAUNCH_H_
