#ifndef SHERD_TESTING_EMULATED_GPU_DRIVER_DRIVER_FIXTURE_H_
#define SHERD_TESTING_EMULATED_GPU_DRIVER_DRIVER_FIXTURE_H_

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/knobs.h"
#include "sherd/testing/emulated_gpu/control.h"
#include "sherd/testing/emulated_gpu/driver_library.h"

namespace sherd::testing {

// Device 0 is current. Findings are counted; one that a test does not expect
// fails it.
class DriverTest : public ::testing::Test {
 protected:
  static const DriverLibrary& Library() {
    static const auto* const library = new DriverLibrary(DriverLibrary::Load(
        GetKnobOr(Knob::kCudaLibrary, "libsherd_emulated_gpu.so").c_str()));
    return *library;
  }
  static const ::sherd::internal::CudaFunctions& cu() { return Library().cuda; }
  static const TestCudaFunctions& more() { return Library().more; }

  void SetUp() override {
    ASSERT_EQ(Library().problem, "");
    Library().set_abort_on_finding(0);
    Library().findings(1);
    ASSERT_EQ(cu().Init(0), 0);
    int count = 0;
    ASSERT_EQ(cu().DeviceGetCount(&count), 0);
    for (int device = 0; device < count; ++device) {
      contexts_.push_back(nullptr);
      ASSERT_EQ(cu().DevicePrimaryCtxRetain(&contexts_.back(), device), 0);
    }
    ASSERT_EQ(cu().CtxSetCurrent(contexts_[0]), 0);
  }

  void TearDown() override {
    Library().set_faults("");
    if (!contexts_.empty()) cu().CtxSetCurrent(contexts_[0]);
    for (size_t i = 0; i < contexts_.size(); ++i) {
      EXPECT_EQ(more().DevicePrimaryCtxRelease(static_cast<int>(i)), 0);
    }
    EXPECT_EQ(Library().findings(0), 0u) << Library().LastFinding();
  }

  // The one finding since the last call.
  static std::string TakeFinding() {
    EXPECT_EQ(Library().findings(0), 1u);
    std::string text = Library().LastFinding();
    Library().findings(1);
    return text;
  }

  static CUdeviceptr Allocate(size_t bytes) {
    CUdeviceptr data = 0;
    EXPECT_EQ(cu().MemAlloc(&data, bytes), 0);
    return data;
  }
  static void* AllocatePinned(size_t bytes) {
    void* data = nullptr;
    EXPECT_EQ(cu().MemHostAlloc(&data, bytes, 0), 0);
    return data;
  }
  static CUstream NewStream(unsigned flags = 1) {
    CUstream stream = nullptr;
    EXPECT_EQ(more().StreamCreate(&stream, flags), 0);
    return stream;
  }
  static CUevent NewEvent() {
    CUevent event = nullptr;
    EXPECT_EQ(cu().EventCreate(&event, 2), 0);
    return event;
  }
  // `later` waits for the work queued on `earlier`.
  static void Order(CUstream earlier, CUstream later) {
    CUevent event = NewEvent();
    EXPECT_EQ(cu().EventRecord(event, earlier), 0);
    EXPECT_EQ(cu().StreamWaitEvent(later, event, 0), 0);
    EXPECT_EQ(cu().EventDestroy(event), 0);
  }
  static CUdeviceptr At(const void* data) {
    return reinterpret_cast<CUdeviceptr>(data);
  }
  // The contents of device memory, after `stream`.
  static std::vector<int> Read(CUdeviceptr data, size_t count,
                               CUstream stream) {
    std::vector<int> values(count, -1);
    EXPECT_EQ(
        cu().MemcpyAsync(At(values.data()), data, count * sizeof(int), stream),
        0);
    return values;
  }
  static void Write(CUdeviceptr data, const std::vector<int>& values,
                    CUstream stream) {
    EXPECT_EQ(cu().MemcpyAsync(data, At(values.data()),
                               values.size() * sizeof(int), stream),
              0);
  }

  std::vector<CUcontext> contexts_;
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_DRIVER_DRIVER_FIXTURE_H_
