#ifndef SHERD_BACKENDS_CUDA_EMULATED_DRIVER_H_
#define SHERD_BACKENDS_CUDA_EMULATED_DRIVER_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/cuda_devices.h"
#include "sherd/backends/cuda/cuda_driver.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/testing/emulated_gpu/control.h"
#include "sherd/testing/emulated_gpu/planned_gpu.h"

namespace sherd::internal {

using sherd::testing::AddressText;
using sherd::testing::MemoryLocation;

// The emulated driver under the plugin of a test, as in a new process, with two
// devices. The functions here act for the rest of a program; they call the
// driver as the plugin does.
class EmulatedDriver : public sherd::testing::PlannedGpu {
 public:
  static const CudaFunctions& cuda() { return sherd::testing::LinkedCuda(); }
  static const sherd::testing::TestCudaFunctions& more() {
    return sherd::testing::LinkedTestCuda();
  }

  // Opens the driver as "emulated" and calls none of its functions.
  static CudaDevices::Opener Opener() {
    return [](CudaLibrary* library, sherd_error_v0*) {
      library->functions = cuda();
      library->path = "emulated";
      library->version = 13000;
      cuda().DriverGetVersion(&library->version);
      return sherd_code{SHERD_OK};
    };
  }

  // The primary context.
  static CUcontext ContextOf(int device) {
    CUcontext context = nullptr;
    EXPECT_EQ(cuda().Init(0), kCudaSuccess);
    EXPECT_EQ(cuda().DevicePrimaryCtxRetain(&context, device), kCudaSuccess);
    return context;
  }
  static CUcontext OtherContextOf(int device) {
    CUcontext context = nullptr;
    CUcontext popped = nullptr;
    EXPECT_EQ(cuda().Init(0), kCudaSuccess);
    EXPECT_EQ(more().CtxCreate(&context, 0, device), kCudaSuccess);
    EXPECT_EQ(cuda().CtxPopCurrent(&popped), kCudaSuccess);
    return context;
  }
  // The contexts of the calling thread; the last is current.
  static std::vector<CUcontext> Contexts() {
    std::vector<CUcontext> contexts;
    CUcontext popped = nullptr;
    while (cuda().CtxPopCurrent(&popped) == kCudaSuccess) {
      contexts.insert(contexts.begin(), popped);
    }
    for (CUcontext context : contexts) cuda().CtxPushCurrent(context);
    return contexts;
  }
  static void SetContexts(const std::vector<CUcontext>& contexts) {
    CUcontext popped = nullptr;
    while (cuda().CtxPopCurrent(&popped) == kCudaSuccess) continue;
    for (CUcontext context : contexts) {
      EXPECT_EQ(cuda().CtxPushCurrent(context), kCudaSuccess);
    }
  }

  static int CaptureMode() {
    int mode = 0;
    cuda().ThreadExchangeStreamCaptureMode(&mode);
    SetCaptureMode(mode);
    return mode;
  }
  static void SetCaptureMode(int mode) {
    EXPECT_EQ(cuda().ThreadExchangeStreamCaptureMode(&mode), kCudaSuccess);
  }

  static CUstream NewStream(int device,
                            unsigned flags = kCudaStreamNonBlocking) {
    CUstream stream = nullptr;
    CUcontext popped = nullptr;
    EXPECT_EQ(cuda().CtxPushCurrent(ContextOf(device)), kCudaSuccess);
    EXPECT_EQ(more().StreamCreate(&stream, flags), kCudaSuccess);
    EXPECT_EQ(cuda().CtxPopCurrent(&popped), kCudaSuccess);
    return stream;
  }
  static void BeginCapture(CUstream stream) {
    EXPECT_EQ(more().StreamBeginCapture(stream, kCudaCaptureModeRelaxed),
              kCudaSuccess);
  }
  // Returns whether all queued work was captured.
  static bool EndCapture(CUstream stream) {
    sherd::testing::CUgraph graph = nullptr;
    return more().StreamEndCapture(stream, &graph) == kCudaSuccess &&
           more().GraphDestroy(graph) == kCudaSuccess;
  }
  // While the result lives, streams start no work.
  static sherd::testing::HeldStreams HoldStreams() {
    return sherd::testing::HeldStreams(sherd_emulated_gpu_hold_streams);
  }
  static void Synchronize(CUstream stream) {
    EXPECT_EQ(cuda().StreamSynchronize(stream), kCudaSuccess);
  }

  // The number of allocations on all devices.
  static size_t NumPieces() {
    return Memory(MemoryLocation::Kind::kDevice).size();
  }
  static size_t NumPinned() {
    return Memory(MemoryLocation::Kind::kPinned).size();
  }
  // The size of the pinned allocation that contains `data`, or 0.
  static uint64_t PinnedBytes(const void* data) {
    for (const MemoryLocation& piece : Memory(MemoryLocation::Kind::kPinned)) {
      const auto* const base = static_cast<const char*>(piece.base);
      if (data >= base && data < base + piece.bytes) return piece.bytes;
    }
    return 0;
  }
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_CUDA_EMULATED_DRIVER_H_
