#ifndef SHERD_TESTING_EMULATED_GPU_DRIVER_LINKED_DRIVER_H_
#define SHERD_TESTING_EMULATED_GPU_DRIVER_LINKED_DRIVER_H_

#include "sherd/backends/cuda/driver_api.h"
#include "sherd/testing/emulated_gpu/graph_api.h"

namespace sherd::testing {

// The functions of the emulated driver that is linked in.
const ::sherd::internal::CudaFunctions& LinkedCuda();
const TestCudaFunctions& LinkedTestCuda();

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_DRIVER_LINKED_DRIVER_H_
