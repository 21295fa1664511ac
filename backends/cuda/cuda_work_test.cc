#include "sherd/backends/cuda/cuda_work.h"

#include <cstdint>
#include <cstring>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/cuda_devices.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/cuda/emulated_driver.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/backends/cuda/pinned_memory.h"
#include "sherd/backends/device_abi.h"

namespace sherd::internal {
namespace {

constexpr char kImage[] = "kernels";

class CudaWorkTest : public ::testing::Test {
 protected:
  CudaWorkTest() { error_.struct_size = sizeof(error_); }

  void* Allocate(int device, uint64_t bytes) {
    void* data = nullptr;
    EXPECT_EQ(devices_.With(device, &error_,
                            [&](CudaDevice& used) {
                              return used.memory.Allocate(
                                  bytes, streams_[device], &data, &error_);
                            }),
              SHERD_OK);
    return data;
  }

  // Of a rows x columns matrix of elements with `gap` elements between rows.
  sherd_code Fill(int device, void* data, const void* value, uint32_t bytes,
                  int64_t gap = 0) {
    const int64_t sizes[] = {3, 5};
    const int64_t strides[] = {5 + gap, 1};
    sherd_fill_v0 fill = {};
    fill.struct_size = sizeof(fill);
    fill.rank = 2;
    fill.data = data;
    fill.sizes = sizes;
    fill.strides = strides;
    fill.element_size = bytes;
    std::memcpy(fill.value, value, bytes);
    return work_.Fill(device, streams_[device], fill, &error_);
  }

  // Copies the transpose of `count` matrices that lie one behind another.
  sherd_code CopyTransposes(int device, int count) {
    const int64_t sizes[] = {7, 9};
    const int64_t dst_strides[] = {9, 1};
    const int64_t src_strides[] = {1, 7};
    char* const dst = static_cast<char*>(Allocate(device, count * 63 * 4));
    const char* const src =
        static_cast<char*>(Allocate(device, count * 63 * 4));
    std::vector<sherd_strided_copy_v0> copies;
    for (int i = 0; i < count; ++i) {
      copies.push_back({dst + i * 63 * 4, src + i * 63 * 4, sizes, dst_strides,
                        src_strides, 2, 4});
    }
    return work_.Copy(device, streams_[device], copies.data(), copies.size(),
                      &error_);
  }

  bool ErrorSays(const char* part) const {
    return absl::StrContains(error_.text, part);
  }

  // Names of kernels, in the order of their launches.
  std::vector<std::string> Kernels() const {
    std::vector<std::string> kernels;
    for (const std::string& call : driver_.CallsOf("cuLaunchKernel")) {
      const size_t start = std::strlen("cuLaunchKernel(");
      kernels.push_back(call.substr(start, call.find(',') - start));
    }
    return kernels;
  }

  static std::string MemsetOf(const char* function, const void* data,
                              uint64_t value, uint64_t count, CUstream stream) {
    return absl::StrCat(function, "(", AddressText(data), ", ", value, ", ",
                        count, ", ", AddressText(stream), ")");
  }

  EmulatedDriver driver_;
  CUstream streams_[2] = {EmulatedDriver::NewStream(0),
                          EmulatedDriver::NewStream(1)};
  CudaDevices devices_{EmulatedDriver::Opener(), kImage};
  PinnedMemory pinned_{devices_.cuda()};
  CudaWork work_{devices_, pinned_};
  sherd_error_v0 error_ = {};
};

TEST_F(CudaWorkTest, CopiesNoBytesWithoutTheDriver) {
  EXPECT_EQ(work_.CopyBytes(0, streams_[0], nullptr, nullptr, 0, &error_),
            SHERD_OK);
  EXPECT_EQ(driver_.Count("cuMemcpyAsync"), 0);
}

TEST_F(CudaWorkTest, CopiesOnTheStreamThatItIsGiven) {
  char* const data = static_cast<char*>(Allocate(1, 64));
  const std::string copy = absl::StrCat("cuMemcpyAsync(", AddressText(data),
                                        ", ", AddressText(data + 32), ", 16, ",
                                        AddressText(streams_[1]), ")");
  std::vector<CUcontext> contexts;
  driver_.OnCall([&](const std::string& call) {
    if (call == copy) contexts = EmulatedDriver::Contexts();
  });
  EXPECT_EQ(work_.CopyBytes(1, streams_[1], data, data + 32, 16, &error_),
            SHERD_OK);
  EXPECT_EQ(driver_.CallsOf("cuMemcpyAsync"), std::vector<std::string>{copy});
  EXPECT_EQ(contexts, std::vector<CUcontext>{EmulatedDriver::ContextOf(1)});
  // With one device the owner of the memory is not queried.
  EXPECT_EQ(driver_.Count("cuPointerGetAttributes"), 0);
}

// A device that reads the host's memory in place may still read it when the
// copy is queued.
TEST_F(CudaWorkTest, WaitsForHostMemoryThatIsNotPinned) {
  char host[64] = {};
  driver_.Answer(
      absl::StrCat("cuDeviceGetAttribute(", kCudaUsesHostPageTables, ","),
      "value=1");
  CUstream const stream = streams_[0];
  void* const data = Allocate(0, 64);
  void* pinned = nullptr;
  ASSERT_EQ(devices_.With(0, &error_,
                          [&](CudaDevice&) {
                            return pinned_.Allocate(64, &pinned, &error_);
                          }),
            SHERD_OK);
  EXPECT_EQ(work_.CopyBytes(0, stream, data, pinned, 64, &error_), SHERD_OK);
  EXPECT_EQ(driver_.Count("cuStreamSynchronize"), 0);
  EXPECT_EQ(work_.CopyBytes(0, stream, data, host, 64, &error_), SHERD_OK);
  EXPECT_EQ(driver_.Count("cuStreamSynchronize"), 1);
  EXPECT_EQ(work_.CopyBytes(0, stream, host, data, 64, &error_), SHERD_OK);
  EXPECT_EQ(driver_.Count("cuStreamSynchronize"), 2);
  driver_.Fail("cuStreamSynchronize", kCudaIllegalAddress);
  EXPECT_EQ(work_.CopyBytes(0, stream, data, host, 64, &error_), SHERD_SYSTEM);
}

TEST_F(CudaWorkTest, CopiesBetweenDevicesAsBetweenPeers) {
  void* const first = Allocate(0, 64);
  void* const second = Allocate(1, 64);
  // Else nothing would order the other device's allocation.
  EmulatedDriver::Synchronize(streams_[0]);
  CUstream const stream = streams_[1];
  EXPECT_EQ(work_.CopyBytes(1, stream, first, second, 64, &error_), SHERD_OK);
  EXPECT_EQ(
      driver_.CallsOf("cuMemcpyPeerAsync"),
      std::vector<std::string>{absl::StrCat(
          "cuMemcpyPeerAsync(", AddressText(first), " in ",
          AddressText(EmulatedDriver::ContextOf(0)), ", ", AddressText(second),
          " in ", AddressText(EmulatedDriver::ContextOf(1)), ", 64, ",
          AddressText(stream), ")")});
  EXPECT_EQ(driver_.Count("cuMemcpyAsync"), 0);
  EXPECT_EQ(work_.CopyBytes(1, stream, second, second, 64, &error_), SHERD_OK);
  EXPECT_EQ(driver_.Count("cuMemcpyAsync"), 1);
  driver_.Fail("cuMemcpyPeerAsync", kCudaIllegalAddress);
  EXPECT_EQ(work_.CopyBytes(1, stream, first, second, 64, &error_),
            SHERD_SYSTEM);
  EXPECT_TRUE(ErrorSays("cuMemcpyPeerAsync"));
}

TEST_F(CudaWorkTest, FillsWithoutGapsByTheDriver) {
  void* const data = Allocate(0, 4096);
  CUstream const stream = streams_[0];
  driver_.ForgetCalls();
  const double zero = 0;
  EXPECT_EQ(Fill(0, data, &zero, 8), SHERD_OK);
  const uint16_t half = 0x3c01;
  EXPECT_EQ(Fill(0, data, &half, 2), SHERD_OK);
  const uint32_t word = 0x3f800001;
  EXPECT_EQ(Fill(0, data, &word, 4), SHERD_OK);
  EXPECT_EQ(driver_.CallsOf("cuMemsetD8Async"),
            std::vector<std::string>{
                MemsetOf("cuMemsetD8Async", data, 0, 15 * 8, stream)});
  EXPECT_EQ(driver_.CallsOf("cuMemsetD16Async"),
            std::vector<std::string>{
                MemsetOf("cuMemsetD16Async", data, 0x3c01, 15, stream)});
  EXPECT_EQ(driver_.CallsOf("cuMemsetD32Async"),
            std::vector<std::string>{
                MemsetOf("cuMemsetD32Async", data, 0x3f800001, 15, stream)});
  EXPECT_TRUE(Kernels().empty());
  driver_.Fail("cuMemsetD8Async", kCudaIllegalAddress);
  EXPECT_EQ(Fill(0, data, &zero, 8), SHERD_SYSTEM);
  EXPECT_TRUE(ErrorSays("cuMemset"));
}

TEST_F(CudaWorkTest, FillsAllOtherLayoutsByAKernel) {
  char* const data = static_cast<char*>(Allocate(0, 4096));
  const uint32_t word = 0x3f800001;
  EXPECT_EQ(Fill(0, data, &word, 4, /*gap=*/2), SHERD_OK);
  // The driver's own wants an address that is aligned.
  EXPECT_EQ(Fill(0, data + 1, &word, 4), SHERD_OK);
  const double one = 1.1;
  EXPECT_EQ(Fill(0, data, &one, 8), SHERD_OK);
  EXPECT_EQ(Kernels(), std::vector<std::string>(3, "sherd_fill_small"));
}

TEST_F(CudaWorkTest, LaunchesOneKernelForAllBoxes) {
  ASSERT_EQ(CopyTransposes(0, 2), SHERD_OK) << error_.text;
  const std::vector<std::string> launches = driver_.CallsOf("cuLaunchKernel");
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_TRUE(absl::StartsWith(Kernels()[0], "sherd_copy_"));
  EXPECT_FALSE(absl::StrContains(launches[0], "grid 1 ")) << launches[0];
  // And not without a parameter: what it names was copied.
  const std::string shape =
      absl::StrCat(" 1 1, block ", kThreads, " 1 1, shared 0, ",
                   AddressText(streams_[0]), ")");
  EXPECT_TRUE(absl::EndsWith(launches[0], shape)) << launches[0];
  EmulatedDriver::Synchronize(streams_[0]);
}

TEST_F(CudaWorkTest, LoadsKernelsOncePerDevice) {
  const double value = 1.1;
  for (const int device : {0, 1, 0, 1}) {
    ASSERT_EQ(CopyTransposes(device, 1), SHERD_OK) << error_.text;
    ASSERT_EQ(Fill(device, Allocate(device, 4096), &value, 8), SHERD_OK);
  }
  EXPECT_EQ(driver_.Count("cuModuleLoadData"), 2);
  EXPECT_EQ(driver_.Count("cuModuleGetFunction"),
            static_cast<int>(2 * std::size(kKernelNames)));
  EXPECT_EQ(Kernels().size(), 8u);
}

// The driver may wait for what runs before it loads one.
TEST_F(CudaWorkTest, LoadsNoKernelOnceTheDeviceIsInUse) {
  char* const data = static_cast<char*>(Allocate(0, 1 << 20));
  CUstream const stream = streams_[0];
  driver_.ForgetCalls();
  const void* const ins[] = {data, data};
  for (int32_t dtype = 0; dtype < 17; ++dtype) {
    for (int32_t reduction = 0; reduction < 8; ++reduction) {
      work_.Reduce(0, stream, dtype, reduction, data, ins, 2, 64, 2, &error_);
    }
  }
  const int64_t one = 1;
  const int64_t size = 64;
  const int64_t offset = 0;
  sherd_random_v0 random = {};
  random.dtype = 13;
  random.rank = 1;
  random.data = data;
  random.sizes = &size;
  random.strides = &one;
  random.global_sizes = &size;
  random.offsets = &offset;
  EXPECT_EQ(work_.Random(0, stream, random, &error_), SHERD_OK);
  const double value = 1.1;
  EXPECT_EQ(Fill(0, data, &value, 8), SHERD_OK);
  EXPECT_EQ(CopyTransposes(0, 1), SHERD_OK);
  EXPECT_EQ(CopyTransposes(0, 50), SHERD_OK);
  EXPECT_EQ(driver_.Count("cuModuleGetFunction"), 0);
  const std::vector<std::string> kernels = Kernels();
  EXPECT_GE(std::set<std::string>(kernels.begin(), kernels.end()).size(),
            17u + 4u);
}

TEST_F(CudaWorkTest, AKernelThatIsNotLaunchedIsAnError) {
  driver_.Fail("cuLaunchKernel", kCudaIllegalAddress);
  EXPECT_EQ(CopyTransposes(0, 1), SHERD_SYSTEM);
  EXPECT_TRUE(
      ErrorSays("cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (700) "
                "sherd_copy_"))
      << error_.text;
  EXPECT_TRUE(ErrorSays("queued earlier on this GPU failed")) << error_.text;
}

TEST_F(CudaWorkTest, KernelsForOtherGpusAreAnError) {
  driver_.Fail("cuModuleLoadData", kCudaNoBinaryForGpu);
  EXPECT_EQ(CopyTransposes(0, 1), SHERD_UNSUPPORTED);
  EXPECT_TRUE(ErrorSays("cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU"))
      << error_.text;
  EXPECT_TRUE(ErrorSays("cuda_architectures")) << error_.text;
  // And are looked for again.
  driver_.Pass("cuModuleLoadData");
  EXPECT_EQ(CopyTransposes(0, 1), SHERD_OK);
}

TEST_F(CudaWorkTest, UnreadableKernelsAreAnErrorWithARemedy) {
  const struct {
    CUresult result;
    const char* help;
  } cases[] = {
      {kCudaInvalidImage, "the driver is older than the toolkit"},
      {kCudaUnsupportedPtxVersion, "the driver is older than the toolkit"},
      {kCudaJitCompilerNotFound, "libnvidia-ptxjitcompiler.so.1"},
  };
  for (const auto& expected : cases) {
    driver_.Fail("cuModuleLoadData", expected.result);
    EXPECT_EQ(CopyTransposes(0, 1), SHERD_UNSUPPORTED) << error_.text;
    EXPECT_TRUE(ErrorSays(expected.help)) << error_.text;
  }
}

TEST_F(CudaWorkTest, AMissingKernelIsNamed) {
  driver_.Fail("cuModuleGetFunction", kCudaNotFound);
  EXPECT_EQ(CopyTransposes(0, 1), SHERD_SYSTEM);
  EXPECT_TRUE(ErrorSays("cuModuleGetFunction")) << error_.text;
  EXPECT_TRUE(ErrorSays("sherd_copy_")) << error_.text;
}

TEST_F(CudaWorkTest, ABuildWithoutNvccReportsIt) {
  for (const char* symbol : {"cuModuleLoadData", "cuModuleGetFunction"}) {
    SCOPED_TRACE(symbol);
    driver_.Restart();
    CUstream const stream = EmulatedDriver::NewStream(0);
    CudaDevices devices(EmulatedDriver::Opener(), nullptr);
    PinnedMemory pinned(devices.cuda());
    CudaWork work(devices, pinned);
    driver_.Fail(symbol, kCudaInvalidImage);
    const int64_t sizes[] = {7, 9};
    const int64_t dst_strides[] = {9, 1};
    const int64_t src_strides[] = {1, 7};
    const sherd_strided_copy_v0 copy = {
        &driver_, &devices, sizes, dst_strides, src_strides, 2, 4};
    EXPECT_EQ(work.Copy(0, stream, &copy, 1, &error_), SHERD_UNSUPPORTED);
    EXPECT_TRUE(ErrorSays("built without nvcc")) << error_.text;
    EXPECT_TRUE(ErrorSays("CUDA_HOME")) << error_.text;
    EXPECT_EQ(error_.native_code, kCudaInvalidImage);
  }
}

TEST_F(CudaWorkTest, ImpossibleArgumentsAreRefusedBeforeAnythingIsQueued) {
  const double value = 1;
  sherd_fill_v0 fill = {};
  fill.struct_size = sizeof(fill);
  fill.element_size = 3;
  std::memcpy(fill.value, &value, 3);
  driver_.ForgetCalls();
  EXPECT_EQ(work_.Fill(0, streams_[0], fill, &error_), SHERD_INVALID_ARGUMENT);
  EXPECT_EQ(
      work_.Reduce(0, streams_[0], 99, 0, &fill, nullptr, 0, 1, 1, &error_),
      SHERD_INVALID_ARGUMENT);
  EXPECT_EQ(driver_.Count("cuLaunchKernel"), 0);
}

// So many boxes do not fit into a launch.
constexpr int kManyBoxes = 500;

TEST_F(CudaWorkTest, TablesAreCopiedThroughPinnedMemoryThatIsReused) {
  CUstream const stream = streams_[0];
  {
    const auto held = EmulatedDriver::HoldStreams();
    ASSERT_EQ(CopyTransposes(0, kManyBoxes), SHERD_OK) << error_.text;
    ASSERT_EQ(CopyTransposes(0, kManyBoxes), SHERD_OK) << error_.text;
    EXPECT_EQ(Kernels().size(), 2u);
    EXPECT_EQ(driver_.Count("cuMemcpyAsync"), 2);
    EXPECT_EQ(driver_.Count("cuEventRecord"), 2);
    // The copy of the first may still be in flight.
    EXPECT_EQ(EmulatedDriver::NumPinned(), 2u);
    // On the device they are freed behind their launches.
    const std::vector<std::string> frees = driver_.CallsOf("cuMemFreeAsync");
    ASSERT_EQ(frees.size(), 2u);
    EXPECT_TRUE(
        absl::EndsWith(frees[0], absl::StrCat(", ", AddressText(stream), ")")))
        << frees[0];
  }
  EmulatedDriver::Synchronize(stream);
  ASSERT_EQ(CopyTransposes(0, kManyBoxes), SHERD_OK) << error_.text;
  EmulatedDriver::Synchronize(stream);
  ASSERT_EQ(CopyTransposes(0, kManyBoxes), SHERD_OK) << error_.text;
  EXPECT_EQ(EmulatedDriver::NumPinned(), 2u);
  EXPECT_EQ(driver_.Count("cuEventCreate"), 2);
}

TEST_F(CudaWorkTest, TablesOfAGraphStay) {
  // Before the capture: the device is in use.
  ASSERT_EQ(CopyTransposes(0, 1), SHERD_OK) << error_.text;
  EmulatedDriver::BeginCapture(streams_[0]);
  ASSERT_EQ(CopyTransposes(0, kManyBoxes), SHERD_OK) << error_.text;
  ASSERT_EQ(CopyTransposes(0, kManyBoxes), SHERD_OK) << error_.text;
  EXPECT_EQ(EmulatedDriver::NumPinned(), 2u);
  EXPECT_EQ(driver_.Count("cuEventRecord"), 0);
  EXPECT_TRUE(EmulatedDriver::EndCapture(streams_[0]));
}

TEST_F(CudaWorkTest, AnErrorWhileATableIsCopiedLeaksNothing) {
  for (const char* symbol : {"cuMemHostAlloc", "cuMemcpyAsync", "cuEventCreate",
                             "cuEventRecord", "cuLaunchKernel"}) {
    SCOPED_TRACE(symbol);
    driver_.Restart();
    CUstream const stream = EmulatedDriver::NewStream(0);
    CudaDevices devices(EmulatedDriver::Opener(), kImage);
    PinnedMemory pinned(devices.cuda());
    CudaWork work(devices, pinned);
    driver_.Fail(symbol, kCudaIllegalAddress);
    const int64_t sizes[] = {7, 9};
    const int64_t dst_strides[] = {9, 1};
    const int64_t src_strides[] = {1, 7};
    std::vector<sherd_strided_copy_v0> copies;
    // Where nothing is: nothing must be copied.
    for (uintptr_t i = 0; i < kManyBoxes; ++i) {
      copies.push_back({reinterpret_cast<void*>(0x1000000 + i * 256),
                        reinterpret_cast<void*>(0x2000000 + i * 256), sizes,
                        dst_strides, src_strides, 2, 4});
    }
    EXPECT_EQ(work.Copy(0, stream, copies.data(), copies.size(), &error_),
              SHERD_SYSTEM);
    EXPECT_TRUE(ErrorSays(symbol)) << error_.text;
    EXPECT_EQ(EmulatedDriver::NumPieces(), 0u);
  }
}

}  // namespace
}  // namespace sherd::internal
