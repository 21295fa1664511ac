#include "sherd/backends/cuda/ipc_memory.h"

#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/cuda/scripted_driver.h"
#include "sherd/backends/device_abi.h"

namespace sherd::internal {
namespace {

class IpcMemoryTest : public ::testing::Test {
 protected:
  IpcMemoryTest() {
    error_.struct_size = sizeof(error_);
    driver_.memory[kBase] = kBytes;
  }

  static void* At(uint64_t offset) {
    return reinterpret_cast<void*>(kBase + offset);
  }

  sherd_device_handle_v0 Export(uint64_t offset, uint64_t bytes) {
    sherd_device_handle_v0 handle = {};
    EXPECT_EQ(ipc_.Export(At(offset), bytes, &handle, &error_), SHERD_OK)
        << error_.text;
    return handle;
  }

  static constexpr uint64_t kBase = 0x200000;
  static constexpr uint64_t kBytes = 4096;

  ScriptedDriver driver_;
  const CudaFunctions cuda_ = ScriptedDriver::Functions();
  IpcMemory ipc_{cuda_};
  sherd_error_v0 error_ = {};
};

TEST_F(IpcMemoryTest, ImportsWhatWasExported) {
  const sherd_device_handle_v0 handle = Export(256, 1024);
  void* data = nullptr;
  ASSERT_EQ(ipc_.Import(handle, &data, &error_), SHERD_OK);
  EXPECT_EQ(data, At(256));
  EXPECT_EQ(driver_.calls("cuIpcOpenMemHandle_v2"), 1);
}

TEST_F(IpcMemoryTest, ClosesAsOftenAsItOpened) {
  const sherd_device_handle_v0 first = Export(0, 16);
  const sherd_device_handle_v0 second = Export(16, 16);
  void* data[3] = {};
  ASSERT_EQ(ipc_.Import(first, &data[0], &error_), SHERD_OK);
  ASSERT_EQ(ipc_.Import(first, &data[1], &error_), SHERD_OK);
  ASSERT_EQ(ipc_.Import(second, &data[2], &error_), SHERD_OK);
  std::vector<CUdeviceptr> closed;
  driver_.on.IpcCloseMemHandle = [&](CUdeviceptr base) {
    closed.push_back(base);
    return kCudaSuccess;
  };
  for (void* one : data) ipc_.Close(one);
  EXPECT_EQ(closed, std::vector<CUdeviceptr>(3, kBase));
  ipc_.Close(data[0]);
  ipc_.Close(nullptr);
  EXPECT_EQ(closed.size(), 3u);
}

TEST_F(IpcMemoryTest, RefusesToExportBeyondAnAllocation) {
  sherd_device_handle_v0 handle = {};
  EXPECT_EQ(ipc_.Export(At(1), kBytes, &handle, &error_),
            SHERD_INVALID_ARGUMENT);
  EXPECT_EQ(ipc_.Export(At(1), UINT64_MAX, &handle, &error_),
            SHERD_INVALID_ARGUMENT);
  EXPECT_EQ(ipc_.Export(At(kBytes), 1, &handle, &error_),
            SHERD_INVALID_ARGUMENT);
}

TEST_F(IpcMemoryTest, SaysThatPoolsCannotBeExported) {
  driver_.Fail("cuIpcGetMemHandle", kCudaInvalidValue);
  sherd_device_handle_v0 handle = {};
  EXPECT_EQ(ipc_.Export(At(0), 1, &handle, &error_), SHERD_UNSUPPORTED);
  EXPECT_TRUE(absl::StrContains(error_.text, "allocate_shared"));
}

TEST_F(IpcMemoryTest, RefusesHandlesThatNobodyExported) {
  const sherd_device_handle_v0 good = Export(256, 1024);
  void* data = nullptr;
  const auto refuse = [&](int word, uint64_t value) {
    sherd_device_handle_v0 bad = good;
    bad.words[word] = value;
    EXPECT_EQ(ipc_.Import(bad, &data, &error_), SHERD_INVALID_ARGUMENT)
        << "word " << word;
    EXPECT_TRUE(driver_.opened.empty()) << "word " << word;
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
  driver_.memory.clear();
  void* data = nullptr;
  EXPECT_EQ(ipc_.Import(handle, &data, &error_), SHERD_INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(error_.text, "cuIpcOpenMemHandle"));
  driver_.Fail("cuIpcOpenMemHandle_v2", kCudaIllegalAddress);
  EXPECT_EQ(ipc_.Import(handle, &data, &error_), SHERD_SYSTEM);
}

}  // namespace
}  // namespace sherd::internal
