#ifndef SHERD_BACKENDS_CUDA_CUDA_SCOPE_H_
#define SHERD_BACKENDS_CUDA_CUDA_SCOPE_H_

#include "sherd/backends/cuda/driver_api.h"

namespace sherd::internal {

// Makes a context the calling thread's current one, and restores the previous
// one at the end of the scope.
//
// Cost. One call of the driver if the context is current already, otherwise
// three.
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

  // The result of cuCtxPushCurrent; unless it is kCudaSuccess, nothing was
  // changed.
  CUresult result() const { return result_; }

 private:
  const CudaFunctions& cuda_;
  CUresult result_ = kCudaSuccess;
  bool is_pushed_ = false;
};

// Whether work queued on a stream becomes part of a graph. This is also
// reported for the default stream while a stream that waits for it is captured:
// then the driver refuses all work on it, and an attempt ends the capture.
inline CUresult GetCapturing(const CudaFunctions& cuda, CUstream stream,
                             bool* is_captured) {
  int status = kCudaCaptureStatusNone;
  const CUresult result = cuda.StreamIsCapturing(stream, &status);
  *is_captured = result == kCudaStreamCaptureImplicit ||
                 (result == kCudaSuccess && status != kCudaCaptureStatusNone);
  return result == kCudaStreamCaptureImplicit ? kCudaSuccess : result;
}

// Lets the calling thread make calls that could disturb a capture elsewhere,
// such as querying events and allocating, since they disturb no capture that
// Sherd knows of.
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
