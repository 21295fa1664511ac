#ifndef SHERD_BACKENDS_CUDA_CUDA_SCOPE_H_
#define SHERD_BACKENDS_CUDA_CUDA_SCOPE_H_

#include "sherd/backends/cuda/driver_api.h"

namespace sherd::internal {

// Makes a context the calling thread's current one, and the one before it
// again in the end.
//
// Cost. One call of the driver if it is current already, else three.
class ContextScope {
 public:
  ContextScope(const CudaFunctions& cuda, CUcontext context) : cuda_(cuda) {
    CUcontext current = nullptr;
    if (cuda.CtxGetCurrent(&current) == kCudaSuccess && current == context) {
      return;
    }
    result_ = cuda.CtxPushCurrent(context);
    is_pushed_ = result_ == kCudaSuccess;
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    CUcontext popped = nullptr;
    if (is_pushed_) cuda_.CtxPopCurrent(&popped);
  }

  // Of cuCtxPushCurrent; unless it is kCudaSuccess, nothing was changed.
  CUresult result() const { return result_; }

 private:
  const CudaFunctions& cuda_;
  CUresult result_ = kCudaSuccess;
  bool is_pushed_ = false;
};

// Whether what is queued on a stream becomes part of a graph. So it would on
// the default stream while one that waits for it is captured: then the driver
// refuses everything there, and what is tried all the same ends the capture.
inline CUresult GetCapturing(const CudaFunctions& cuda, CUstream stream,
                             bool* is_captured) {
  int status = kCudaCaptureStatusNone;
  const CUresult result = cuda.StreamIsCapturing(stream, &status);
  *is_captured = result == kCudaStreamCaptureImplicit ||
                 (result == kCudaSuccess && status != kCudaCaptureStatusNone);
  return result == kCudaStreamCaptureImplicit ? kCudaSuccess : result;
}

// Lets the calling thread do what could disturb a capture elsewhere, such as
// asking events and allocating, since it disturbs none that Sherd knows.
class RelaxedCaptureScope {
 public:
  explicit RelaxedCaptureScope(const CudaFunctions& cuda) : cuda_(cuda) {
    is_changed_ = cuda.ThreadExchangeStreamCaptureMode(&mode_) == kCudaSuccess;
  }
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;
  ~RelaxedCaptureScope() {
    if (is_changed_) cuda_.ThreadExchangeStreamCaptureMode(&mode_);
  }

 private:
  const CudaFunctions& cuda_;
  int mode_ = kCudaCaptureModeRelaxed;
  bool is_changed_ = false;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_CUDA_SCOPE_H_
