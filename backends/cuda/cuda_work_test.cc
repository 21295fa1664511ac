#include "sherd/backends/cuda/cuda_work.h"

#include <cstdint>
#include <cstring>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/cuda_devices.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/backends/cuda/pinned_memory.h"
#include "sherd/backends/cuda/scripted_driver.h"
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
                              return used.memory.Allocate(bytes, nullptr, &data,
                                                          &error_);
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
    return work_.Fill(device, stream_, fill, &error_);
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
    return work_.Copy(device, stream_, copies.data(), copies.size(), &error_);
  }

  bool ErrorSays(const char* part) const {
    return absl::StrContains(error_.text, part);
  }

  ScriptedDriver driver_;
  CudaDevices devices_{driver_.Opener(), kImage};
  PinnedMemory pinned_{devices_.cuda()};
  CudaWork work_{devices_, pinned_};
  void* const stream_ = ScriptedDriver::StreamNumber(1);
  sherd_error_v0 error_ = {};
};

TEST_F(CudaWorkTest, CopiesNoBytesWithoutTheDriver) {
  EXPECT_EQ(work_.CopyBytes(0, stream_, nullptr, nullptr, 0, &error_),
            SHERD_OK);
  EXPECT_EQ(driver_.calls("cuMemcpyAsync"), 0);
}

TEST_F(CudaWorkTest, CopiesOnTheStreamThatItIsGiven) {
  char* const data = static_cast<char*>(Allocate(1, 64));
  std::vector<uint64_t> seen;
  driver_.on.MemcpyAsync = [&](CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                               CUstream stream) {
    EXPECT_EQ(driver_.contexts.back(), ScriptedDriver::ContextOf(1));
    seen = {dst, src, bytes, reinterpret_cast<uint64_t>(stream)};
    return kCudaSuccess;
  };
  EXPECT_EQ(work_.CopyBytes(1, stream_, data, data + 32, 16, &error_),
            SHERD_OK);
  EXPECT_EQ(seen,
            (std::vector<uint64_t>{reinterpret_cast<uint64_t>(data),
                                   reinterpret_cast<uint64_t>(data) + 32, 16,
                                   reinterpret_cast<uint64_t>(stream_)}));
  // One device: nobody asks whose memory it is.
  EXPECT_EQ(driver_.calls("cuPointerGetAttributes"), 0);
}

// What reads the host's memory in its place may still do so when the copy is
// queued.
TEST_F(CudaWorkTest, WaitsForHostMemoryThatIsNotPinned) {
  char host[64];
  driver_.uses_host_pages = true;
  void* const data = Allocate(0, 64);
  void* pinned = nullptr;
  ASSERT_EQ(pinned_.Allocate(64, &pinned, &error_), SHERD_OK);
  EXPECT_EQ(work_.CopyBytes(0, stream_, data, pinned, 64, &error_), SHERD_OK);
  EXPECT_EQ(driver_.calls("cuStreamSynchronize"), 0);
  EXPECT_EQ(work_.CopyBytes(0, stream_, data, host, 64, &error_), SHERD_OK);
  EXPECT_EQ(driver_.calls("cuStreamSynchronize"), 1);
  EXPECT_EQ(work_.CopyBytes(0, stream_, host, data, 64, &error_), SHERD_OK);
  EXPECT_EQ(driver_.calls("cuStreamSynchronize"), 2);
  driver_.Fail("cuStreamSynchronize", kCudaIllegalAddress);
  EXPECT_EQ(work_.CopyBytes(0, stream_, data, host, 64, &error_), SHERD_SYSTEM);
}

TEST_F(CudaWorkTest, CopiesBetweenDevicesAsBetweenPeers) {
  void* const first = Allocate(0, 64);
  void* const second = Allocate(1, 64);
  driver_.on.PointerGetAttributes = [&](unsigned, int*, void** values,
                                        CUdeviceptr data) {
    *static_cast<int*>(values[0]) = kCudaMemoryTypeDevice;
    *static_cast<int*>(values[1]) =
        data == reinterpret_cast<uintptr_t>(second) ? 1 : 0;
    return kCudaSuccess;
  };
  std::vector<CUcontext> contexts;
  driver_.on.MemcpyPeerAsync = [&](CUdeviceptr, CUcontext dst, CUdeviceptr,
                                   CUcontext src, size_t, CUstream) {
    contexts = {dst, src};
    return kCudaSuccess;
  };
  EXPECT_EQ(work_.CopyBytes(1, stream_, first, second, 64, &error_), SHERD_OK);
  EXPECT_EQ(contexts, (std::vector<CUcontext>{ScriptedDriver::ContextOf(0),
                                              ScriptedDriver::ContextOf(1)}));
  EXPECT_EQ(driver_.calls("cuMemcpyAsync"), 0);
  EXPECT_EQ(work_.CopyBytes(1, stream_, second, second, 64, &error_), SHERD_OK);
  EXPECT_EQ(driver_.calls("cuMemcpyAsync"), 1);
  driver_.Fail("cuMemcpyPeerAsync", kCudaIllegalAddress);
  EXPECT_EQ(work_.CopyBytes(1, stream_, first, second, 64, &error_),
            SHERD_SYSTEM);
  EXPECT_TRUE(ErrorSays("cuMemcpyPeerAsync"));
}

TEST_F(CudaWorkTest, FillsWithoutGapsByTheDriver) {
  void* const data = Allocate(0, 4096);
  std::vector<std::pair<int, uint64_t>> calls;
  driver_.on.MemsetD8Async = [&](CUdeviceptr, unsigned char value, size_t count,
                                 CUstream) {
    calls.emplace_back(value, count);
    return kCudaSuccess;
  };
  const auto note = [&](CUdeviceptr, unsigned value, size_t count, CUstream) {
    calls.emplace_back(value, count);
    return kCudaSuccess;
  };
  driver_.on.MemsetD16Async = note;
  driver_.on.MemsetD32Async = note;
  const double zero = 0;
  EXPECT_EQ(Fill(0, data, &zero, 8), SHERD_OK);
  const uint16_t half = 0x3c01;
  EXPECT_EQ(Fill(0, data, &half, 2), SHERD_OK);
  const uint32_t word = 0x3f800001;
  EXPECT_EQ(Fill(0, data, &word, 4), SHERD_OK);
  EXPECT_EQ(calls, (std::vector<std::pair<int, uint64_t>>{
                       {0, 15 * 8}, {0x3c01, 15}, {0x3f800001, 15}}));
  EXPECT_TRUE(driver_.kernels.empty());
  driver_.Fail("cuMemsetD8Async", kCudaIllegalAddress);
  EXPECT_EQ(Fill(0, data, &zero, 8), SHERD_SYSTEM);
  EXPECT_TRUE(ErrorSays("cuMemset"));
}

TEST_F(CudaWorkTest, FillsEverythingElseByAKernel) {
  char* const data = static_cast<char*>(Allocate(0, 4096));
  const uint32_t word = 0x3f800001;
  EXPECT_EQ(Fill(0, data, &word, 4, /*gap=*/2), SHERD_OK);
  // The driver's own wants an address that is aligned.
  EXPECT_EQ(Fill(0, data + 1, &word, 4), SHERD_OK);
  const double one = 1.1;
  EXPECT_EQ(Fill(0, data, &one, 8), SHERD_OK);
  EXPECT_EQ(driver_.kernels, std::vector<std::string>(3, "sherd_fill_small"));
}

TEST_F(CudaWorkTest, LaunchesOneKernelForAllBoxes) {
  std::vector<unsigned> dimensions;
  CUstream stream = nullptr;
  void* parameter = nullptr;
  driver_.on.LaunchKernel =
      [&](CUfunction function, unsigned grid_x, unsigned grid_y,
          unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
          unsigned shared_bytes, CUstream given, void** parameters, void**) {
        driver_.kernels.emplace_back(reinterpret_cast<const char*>(function));
        dimensions = {grid_y, grid_z, block_x, block_y, block_z, shared_bytes};
        EXPECT_GE(grid_x, 2u);
        stream = given;
        parameter = parameters[0];
        return kCudaSuccess;
      };
  ASSERT_EQ(CopyTransposes(0, 2), SHERD_OK) << error_.text;
  ASSERT_EQ(driver_.kernels.size(), 1u);
  EXPECT_TRUE(absl::StartsWith(driver_.kernels[0], "sherd_copy_"));
  EXPECT_EQ(dimensions, (std::vector<unsigned>{1, 1, kThreads, 1, 1, 0}));
  EXPECT_EQ(stream, stream_);
  EXPECT_NE(parameter, nullptr);
}

TEST_F(CudaWorkTest, LoadsKernelsOncePerDevice) {
  const double value = 1.1;
  for (const int device : {0, 1, 0, 1}) {
    ASSERT_EQ(CopyTransposes(device, 1), SHERD_OK) << error_.text;
    ASSERT_EQ(Fill(device, Allocate(device, 4096), &value, 8), SHERD_OK);
  }
  EXPECT_EQ(driver_.calls("cuModuleLoadData"), 2);
  EXPECT_EQ(driver_.calls("cuModuleGetFunction"),
            static_cast<int>(2 * std::size(kKernelNames)));
  EXPECT_EQ(driver_.kernels.size(), 8u);
}

// The driver may wait for what runs before it loads one.
TEST_F(CudaWorkTest, LoadsNoKernelOnceTheDeviceIsInUse) {
  char* const data = static_cast<char*>(Allocate(0, 1 << 20));
  driver_.ForgetCalls();
  const void* const ins[] = {data, data};
  for (int32_t dtype = 0; dtype < 17; ++dtype) {
    for (int32_t reduction = 0; reduction < 8; ++reduction) {
      work_.Reduce(0, stream_, dtype, reduction, data, ins, 2, 64, 2, &error_);
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
  EXPECT_EQ(work_.Random(0, stream_, random, &error_), SHERD_OK);
  const double value = 1.1;
  EXPECT_EQ(Fill(0, data, &value, 8), SHERD_OK);
  EXPECT_EQ(CopyTransposes(0, 1), SHERD_OK);
  EXPECT_EQ(CopyTransposes(0, 50), SHERD_OK);
  EXPECT_EQ(driver_.calls("cuModuleGetFunction"), 0);
  EXPECT_GE(
      std::set<std::string>(driver_.kernels.begin(), driver_.kernels.end())
          .size(),
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
  driver_.Fail("cuModuleLoadData", kCudaSuccess, 1000);
  EXPECT_EQ(CopyTransposes(0, 1), SHERD_OK);
}

TEST_F(CudaWorkTest, KernelsThatTheDriverCannotReadSayHowToHelp) {
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

TEST_F(CudaWorkTest, ABuildWithoutNvccSaysSo) {
  for (const char* symbol : {"cuModuleLoadData", "cuModuleGetFunction"}) {
    SCOPED_TRACE(symbol);
    ScriptedDriver driver;
    CudaDevices devices(driver.Opener(), nullptr);
    PinnedMemory pinned(devices.cuda());
    CudaWork work(devices, pinned);
    driver.Fail(symbol, kCudaInvalidImage);
    const int64_t sizes[] = {7, 9};
    const int64_t dst_strides[] = {9, 1};
    const int64_t src_strides[] = {1, 7};
    const sherd_strided_copy_v0 copy = {
        &driver, &devices, sizes, dst_strides, src_strides, 2, 4};
    EXPECT_EQ(work.Copy(0, stream_, &copy, 1, &error_), SHERD_UNSUPPORTED);
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
  EXPECT_EQ(work_.Fill(0, stream_, fill, &error_), SHERD_INVALID_ARGUMENT);
  EXPECT_EQ(work_.Reduce(0, stream_, 99, 0, &fill, nullptr, 0, 1, 1, &error_),
            SHERD_INVALID_ARGUMENT);
  EXPECT_EQ(driver_.calls("cuLaunchKernel"), 0);
}

// So many boxes do not fit into a launch.
constexpr int kManyBoxes = 500;

TEST_F(CudaWorkTest, TablesTravelThroughPinnedMemoryThatGoesRound) {
  driver_.on.EventQuery = [](CUevent) { return kCudaNotReady; };
  ASSERT_EQ(CopyTransposes(0, kManyBoxes), SHERD_OK) << error_.text;
  ASSERT_EQ(CopyTransposes(0, kManyBoxes), SHERD_OK) << error_.text;
  EXPECT_EQ(driver_.kernels.size(), 2u);
  EXPECT_EQ(driver_.calls("cuMemcpyAsync"), 2);
  EXPECT_EQ(driver_.calls("cuEventRecord"), 2);
  // The first may be on its way still.
  EXPECT_EQ(driver_.pinned.size(), 2u);
  // On the device they are freed behind their launches.
  EXPECT_EQ(driver_.frees.size(), 2u);
  EXPECT_EQ(driver_.frees[0].second, stream_);

  driver_.on.EventQuery = [](CUevent) { return kCudaSuccess; };
  ASSERT_EQ(CopyTransposes(0, kManyBoxes), SHERD_OK) << error_.text;
  ASSERT_EQ(CopyTransposes(0, kManyBoxes), SHERD_OK) << error_.text;
  EXPECT_EQ(driver_.pinned.size(), 2u);
  EXPECT_EQ(driver_.calls("cuEventCreate"), 2);
}

TEST_F(CudaWorkTest, TablesOfAGraphStay) {
  driver_.capturing.insert(ScriptedDriver::StreamNumber(1));
  driver_.on.MemFreeAsync = [](CUdeviceptr, CUstream) { return kCudaSuccess; };
  ASSERT_EQ(CopyTransposes(0, kManyBoxes), SHERD_OK) << error_.text;
  ASSERT_EQ(CopyTransposes(0, kManyBoxes), SHERD_OK) << error_.text;
  EXPECT_EQ(driver_.pinned.size(), 2u);
  EXPECT_EQ(driver_.calls("cuEventRecord"), 0);
}

TEST_F(CudaWorkTest, AnErrorOnTheWayOfATableKeepsNothing) {
  for (const char* symbol : {"cuMemHostAlloc", "cuMemcpyAsync", "cuEventCreate",
                             "cuEventRecord", "cuLaunchKernel"}) {
    SCOPED_TRACE(symbol);
    ScriptedDriver driver;
    CudaDevices devices(driver.Opener(), kImage);
    PinnedMemory pinned(devices.cuda());
    CudaWork work(devices, pinned);
    driver.Fail(symbol, kCudaIllegalAddress);
    const int64_t sizes[] = {7, 9};
    const int64_t dst_strides[] = {9, 1};
    const int64_t src_strides[] = {1, 7};
    std::vector<sherd_strided_copy_v0> copies;
    for (uintptr_t i = 0; i < kManyBoxes; ++i) {
      copies.push_back({reinterpret_cast<void*>(0x1000000 + i * 256),
                        reinterpret_cast<void*>(0x2000000 + i * 256), sizes,
                        dst_strides, src_strides, 2, 4});
    }
    EXPECT_EQ(work.Copy(0, stream_, copies.data(), copies.size(), &error_),
              SHERD_SYSTEM);
    EXPECT_TRUE(ErrorSays(symbol)) << error_.text;
    EXPECT_TRUE(driver.memory.empty());
  }
}

}  // namespace
}  // namespace sherd::internal
