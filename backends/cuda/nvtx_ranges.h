#ifndef SHERD_BACKENDS_CUDA_NVTX_RANGES_H_
#define SHERD_BACKENDS_CUDA_NVTX_RANGES_H_

namespace sherd::internal {

// Ranges of NVTX, which profilers such as Nsight Systems show. Where none
// listens, and in a build without the CUDA toolkit's headers, nothing.
//
// Cost. A test of a pointer where none listens.
void PushNvtxRange(const char* name);
void PopNvtxRange();

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_NVTX_RANGES_H_
