#ifndef SHERD_BACKENDS_CUDA_KERNEL_IMAGE_H_
#define SHERD_BACKENDS_CUDA_KERNEL_IMAGE_H_

#include <cstddef>

namespace sherd::internal {

// The kernels of kernels.cu in the form that cuModuleLoadData takes: a fatbin
// with code for the architectures of this build
// (--//tools/build:cuda_architectures). Empty (null and 0) in a build without
// nvcc.
struct KernelImage {
  const void* data = nullptr;
  size_t bytes = 0;
};
KernelImage GetKernelImage();

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_KERNEL_IMAGE_H_
