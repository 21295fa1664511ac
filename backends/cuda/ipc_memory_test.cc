#include "sherd/backends/cuda/ipc_memory.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/cuda/emulated_driver.h"
#include "sherd/backends/device_abi.h"

namespace sherd::internal {
namespace {

class IpcMemoryTest : public ::testing::Test {
 protected:
  IpcMemoryTest() {
    error_.struct_size = sizeof(error_);
    EmulatedDriver::SetContexts({EmulatedDriver::ContextOf(0)});
    // The other process is this one.
    driver_.Answer("cuIpcOpenMemHandle", "own");
    EXPECT_EQ(cuda_.MemAlloc(&base_, kBytes), kCudaSuccess);
    EXPECT_EQ(cuda_.MemsetD32Async(base_ + 256, 256, 1, nullptr), kCudaSuccess);
  }

  void* At(uint64_t offset) const {
    return reinterpret_cast<void*>(base_ + offset);
  }

  uint32_t Read(const void* data) const {
    uint32_t value = 0;
    EXPECT_EQ(EmulatedDriver::more().Memcpy(reinterpret_cast<uintptr_t>(&value),
                                            reinterpret_cast<uintptr_t>(data),
                                            sizeof(value)),
              kCudaSuccess);
    return value;
  }

  static std::vector<MemoryLocation> Opened() {
    return EmulatedDriver::Memory(MemoryLocation::Kind::kImported);
  }

  sherd_device_handle_v0 Export(uint64_t offset, uint64_t bytes) {
    sherd_device_handle_v0 handle = {};
    EXPECT_EQ(ipc_.Export(At(offset), bytes, &handle, &error_), SHERD_OK)
        << error_.text;
    return handle;
  }

  static constexpr uint64_t kBytes = 4096;

  EmulatedDriver driver_;
  const CudaFunctions cuda_ = EmulatedDriver::cuda();
  CUdeviceptr base_ = 0;
  IpcMemory ipc_{cuda_};
  sherd_error_v0 error_ = {};
};

TEST_F(IpcMemoryTest, ImportsExportedMemory) {
  const sherd_device_handle_v0 handle = Export(256, 1024);
  void* data = nullptr;
  ASSERT_EQ(ipc_.Import(handle, &data, &error_), SHERD_OK);
  EXPECT_NE(data, At(256));
  EXPECT_EQ(Read(data), 256u);
  EXPECT_EQ(driver_.Count("cuIpcOpenMemHandle"), 1);
}

TEST_F(IpcMemoryTest, ClosesAsOftenAsItOpened) {
  const sherd_device_handle_v0 first = Export(0, 16);
  const sherd_device_handle_v0 second = Export(16, 16);
  void* data[3] = {};
  ASSERT_EQ(ipc_.Import(first, &data[0], &error_), SHERD_OK);
  ASSERT_EQ(ipc_.Import(first, &data[1], &error_), SHERD_OK);
  ASSERT_EQ(ipc_.Import(second, &data[2], &error_), SHERD_OK);
  ASSERT_EQ(Opened().size(), 1u);
  const std::string close =
      absl::StrCat("cuIpcCloseMemHandle(", AddressText(Opened()[0].base), ")");
  for (void* one : data) {
    EXPECT_EQ(Opened().size(), 1u);
    ipc_.Close(one);
  }
  EXPECT_EQ(driver_.CallsOf("cuIpcCloseMemHandle"),
            std::vector<std::string>(3, close));
  EXPECT_TRUE(Opened().empty());
  ipc_.Close(data[0]);
  ipc_.Close(nullptr);
  EXPECT_EQ(driver_.Count("cuIpcCloseMemHandle"), 3);
}

TEST_F(IpcMemoryTest, RefusesToExportBeyondAnAllocation) {
  sherd_device_handle_v0 handle = {};
  EXPECT_EQ(ipc_.Export(At(1), kBytes, &handle, &error_),
            SHERD_INVALID_ARGUMENT);
  EXPECT_EQ(ipc_.Export(At(1), UINT64_MAX, &handle, &error_),
            SHERD_INVALID_ARGUMENT);
  // Of no allocation at all.
  driver_.Fail("cuMemGetAddressRange", kCudaInvalidValue);
  EXPECT_EQ(ipc_.Export(At(kBytes), 1, &handle, &error_),
            SHERD_INVALID_ARGUMENT);
}

TEST_F(IpcMemoryTest, ReportsThatPoolsCannotBeExported) {
  const CUmemPoolProps properties = {.allocType = kCudaAllocationPinned,
                                     .handleTypes = kCudaHandleTypeNone,
                                     .location = {kCudaLocationDevice, 0},
                                     .win32SecurityAttributes = nullptr,
                                     .maxSize = 0,
                                     .usage = 0,
                                     .reserved = {}};
  CUmemoryPool pool = nullptr;
  CUdeviceptr data = 0;
  ASSERT_EQ(cuda_.MemPoolCreate(&pool, &properties), kCudaSuccess);
  ASSERT_EQ(cuda_.MemAllocFromPoolAsync(&data, 64, pool, nullptr),
            kCudaSuccess);
  sherd_device_handle_v0 handle = {};
  EXPECT_EQ(ipc_.Export(reinterpret_cast<void*>(data), 1, &handle, &error_),
            SHERD_UNSUPPORTED);
  EXPECT_TRUE(absl::StrContains(error_.text, "allocate_shared"));
}

TEST_F(IpcMemoryTest, RefusesInvalidHandles) {
  const sherd_device_handle_v0 good = Export(256, 1024);
  void* data = nullptr;
  const auto refuse = [&](int word, uint64_t value) {
    sherd_device_handle_v0 bad = good;
    bad.words[word] = value;
    EXPECT_EQ(ipc_.Import(bad, &data, &error_), SHERD_INVALID_ARGUMENT)
        << "word " << word;
    EXPECT_TRUE(Opened().empty()) << "word " << word;
  };
  // No handle of the driver's, of Sherd's, and places outside.
  refuse(0, 0x77);
  refuse(8, 0);
  refuse(9, kBytes);
  refuse(9, UINT64_MAX);
  refuse(9, UINT64_MAX - 512);
  refuse(10, kBytes - 255);
  refuse(10, UINT64_MAX);
  refuse(11, 1);
  EXPECT_EQ(ipc_.Import({}, &data, &error_), SHERD_INVALID_ARGUMENT);
  EXPECT_EQ(data, nullptr);
}

TEST_F(IpcMemoryTest, AHandleCutShortByItsOwnersDeathIsAnError) {
  const sherd_device_handle_v0 handle = Export(0, 16);
  EXPECT_EQ(cuda_.MemFree(base_), kCudaSuccess);
  void* data = nullptr;
  EXPECT_EQ(ipc_.Import(handle, &data, &error_), SHERD_INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(error_.text, "cuIpcOpenMemHandle"));
  driver_.Fail("cuIpcOpenMemHandle", kCudaIllegalAddress);
  EXPECT_EQ(ipc_.Import(handle, &data, &error_), SHERD_SYSTEM);
}

}  // namespace
}  // namespace sherd::internal
