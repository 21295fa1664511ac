#ifndef SHERD_CORE_TENSOR_DEVICE_STREAM_H_
#define SHERD_CORE_TENSOR_DEVICE_STREAM_H_

#include "sherd/core/tensor/device.h"

namespace sherd {

// The stream on which the calling thread queues work of a device: that of the
// innermost ScopedStream for it, otherwise the device's default stream.
// `device` has an index.
//
// Cost. No lock, no allocation.
DeviceStream CurrentStream(const Device& device);

// Makes `stream` current for the calling thread. Create and destroy on that
// thread, innermost first. The handle names one stream on all threads, which
// CUDA's cudaStreamPerThread does not. The stream must outlive it, and the
// tensors that are created meanwhile, unless DeviceRuntime::DestroyStream ends
// it.
class ScopedStream {
 public:
  explicit ScopedStream(const DeviceStream& stream);
  ScopedStream(const ScopedStream&) = delete;
  ScopedStream& operator=(const ScopedStream&) = delete;
  ~ScopedStream();

 private:
  friend DeviceStream CurrentStream(const Device& device);

  const DeviceStream stream_;
  ScopedStream* const outer_;
};

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_DEVICE_STREAM_H_
