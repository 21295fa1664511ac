#include "sherd/backends/cuda/kernel_module.h"

#include <cstdio>
#include <cstring>
#include <mutex>

#include "sherd/backends/cuda/cuda_error.h"
#include "sherd/backends/cuda/cuda_scope.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

// An image that a driver without kernels of its own refuses. Aligned as code
// is.
alignas(16) constexpr char kNoImage[64] = "Sherd was built without nvcc";

}  // namespace

void KernelModule::LoadAll() {
  if (image_ == nullptr) return;
  for (const char* const name : kKernelNames) {
    CUfunction kernel = nullptr;
    // Find reports the error.
    sherd_error_v0 ignored = {};
    if (Find(name, &kernel, &ignored) != SHERD_OK) return;
  }
}

CUfunction KernelModule::FindKnown(const char* name) const {
  const size_t count = num_known_.load(std::memory_order_acquire);
  for (size_t i = 0; i < count; ++i) {
    // Names are literals: the same one nearly always has the same address.
    if (known_[i].name == name) return known_[i].kernel;
  }
  for (size_t i = 0; i < count; ++i) {
    if (std::strcmp(known_[i].name, name) == 0) return known_[i].kernel;
  }
  return nullptr;
}

sherd_code KernelModule::Find(const char* name, CUfunction* kernel,
                              sherd_error_v0* error) {
  *kernel = FindKnown(name);
  if (*kernel != nullptr) return SHERD_OK;

  std::lock_guard<std::mutex> lock(mutex_);
  *kernel = FindKnown(name);
  if (*kernel != nullptr) return SHERD_OK;
  const RelaxedCaptureScope relaxed(cuda_);
  if (const sherd_code code = Load(error); code != SHERD_OK) return code;
  if (const CUresult result = cuda_.ModuleGetFunction(kernel, module_, name);
      result != kCudaSuccess) {
    return FailLoad("cuModuleGetFunction", result, name, error);
  }
  const size_t count = num_known_.load(std::memory_order_relaxed);
  if (count < known_.size()) {
    known_[count] = {name, *kernel};
    num_known_.store(count + 1, std::memory_order_release);
  }
  return SHERD_OK;
}

sherd_code KernelModule::Load(sherd_error_v0* error) {
  if (module_ != nullptr) return SHERD_OK;
  CUmodule module = nullptr;
  if (const CUresult result =
          cuda_.ModuleLoadData(&module, image_ != nullptr ? image_ : kNoImage);
      result != kCudaSuccess) {
    return FailLoad("cuModuleLoadData", result, "", error);
  }
  module_ = module;
  return SHERD_OK;
}

sherd_code KernelModule::FailLoad(const char* function, CUresult result,
                                  const char* name, sherd_error_v0* error) {
  if (image_ != nullptr || IsSticky(result)) {
    return FailCuda(error, cuda_, function, result, name);
  }
  error->native_code = result;
  return Fail(error, SHERD_UNSUPPORTED, -1,
              "this Sherd has no kernels, since it was built without nvcc: "
              "install the CUDA toolkit where it is built (CUDA_HOME), and "
              "build it again");
}

}  // namespace sherd::internal
