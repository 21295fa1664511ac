#include "sherd/testing/emulated_gpu/driver/linked_driver.h"

namespace sherd::testing {
namespace {

#define SHERD_DECLARE(name, symbol, parameters) \
  extern "C" internal::CUresult Linked##name parameters __asm__(symbol);
using namespace internal;  // NOLINT(build/namespaces): types of the parameters
SHERD_CUDA_FUNCTIONS(SHERD_DECLARE)
SHERD_TEST_CUDA_FUNCTIONS(SHERD_DECLARE)
#undef SHERD_DECLARE

#define SHERD_FILL(name, symbol, parameters) filled.name = Linked##name;

}  // namespace

const internal::CudaFunctions& LinkedCuda() {
  static const internal::CudaFunctions functions = [] {
    internal::CudaFunctions filled;
    SHERD_CUDA_FUNCTIONS(SHERD_FILL)
    return filled;
  }();
  return functions;
}

const TestCudaFunctions& LinkedTestCuda() {
  static const TestCudaFunctions functions = [] {
    TestCudaFunctions filled;
    SHERD_TEST_CUDA_FUNCTIONS(SHERD_FILL)
    return filled;
  }();
  return functions;
}

#undef SHERD_FILL

}  // namespace sherd::testing
