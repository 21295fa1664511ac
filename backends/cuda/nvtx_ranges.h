#ifndef SHERD_BACKENDS_CUDA_NVTX_RANGES_H_
#define SHERD_BACKENDS_CUDA_NVTX_RANGES_H_

namespace sherd::internal {

// Ranges of NVTX, which profilers such as Nsight Systems show. Does nothing
// without a profiler, and in a build without the CUDA toolkit's headers.
//
// Cost. A test of a pointer without a profiler.
void PushNvtxRange(const char* name);
void PopNvtxRange();

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_NVTX_RANGES_H_
