#include "sherd/backends/cuda/kernel_image.h"

namespace sherd::internal {
namespace {

#include "sherd/backends/cuda/kernels.inc"  // NOLINT(build/include)

}  // namespace

KernelImage GetKernelImage() {
  if (kImageBytes == 0) return {};
  return {kImage, kImageBytes};
}

}  // namespace sherd::internal
