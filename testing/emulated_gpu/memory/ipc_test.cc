// Memory of one process in another: the test starts itself again.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/testing/emulated_gpu/driver/driver_fixture.h"

namespace sherd::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ToHex(const internal::CUipcMemHandle& handle) {
  std::string text;
  for (const char byte : handle.reserved) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x",
                  static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

class IpcTest : public DriverTest {
 protected:
  // Runs the test of that name in a new process, which finds `handle` in its
  // arguments, and returns its exit code.
  static int RunOther(const char* test,
                      const internal::CUipcMemHandle& handle) {
    const std::string filter = std::string("--gtest_filter=") + test;
    const std::string argument = "--handle=" + ToHex(handle);
    const pid_t child = fork();
    if (child == 0) {
      execl("/proc/self/exe", "ipc_test", filter.c_str(), argument.c_str(),
            "--gtest_also_run_disabled_tests", nullptr);
      _exit(127);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  static internal::CUipcMemHandle HandleOf(CUdeviceptr data) {
    internal::CUipcMemHandle handle;
    EXPECT_EQ(cu().IpcGetMemHandle(&handle, data), 0);
    return handle;
  }

 public:
  static internal::CUipcMemHandle given_;
};

internal::CUipcMemHandle IpcTest::given_;

TEST_F(IpcTest, OtherProcessReadsAndWrites) {
  CUstream stream = NewStream();
  const CUdeviceptr data = Allocate(100 * sizeof(int));
  Write(data, {1, 2, 3, 4}, stream);
  cu().StreamSynchronize(stream);
  const internal::CUipcMemHandle handle = HandleOf(data);
  EXPECT_EQ(RunOther("IpcTest.DISABLED_Other", handle), 0);
  EXPECT_THAT(Read(data, 4, stream), ElementsAre(7, 7, 3, 4));
  CUdeviceptr own = 0;
  EXPECT_EQ(cu().IpcOpenMemHandle(&own, handle, 1), 201) << "its own process";
  cu().MemFree(data);
  EXPECT_EQ(RunOther("IpcTest.DISABLED_OtherFindsNothing", handle), 0);
}

TEST_F(IpcTest, DISABLED_Other) {
  CUdeviceptr data = 0;
  CUdeviceptr again = 0;
  ASSERT_EQ(cu().IpcOpenMemHandle(&data, given_, 1), 0);
  ASSERT_EQ(cu().IpcOpenMemHandle(&again, given_, 1), 0);
  EXPECT_EQ(data, again);
  CUstream stream = NewStream();
  EXPECT_THAT(Read(data, 4, stream), ElementsAre(1, 2, 3, 4));
  cu().MemsetD32Async(data, 7, 2, stream);
  cu().MemsetD32Async(data, 7, 101, stream);
  EXPECT_THAT(TakeFinding(), HasSubstr("behind the end of an allocation"));
  EXPECT_EQ(cu().IpcCloseMemHandle(data), 0);
  EXPECT_THAT(Read(data, 2, stream), Each(7));
  EXPECT_EQ(cu().IpcCloseMemHandle(data), 0);
  cu().MemsetD32Async(data, 7, 1, stream);
  EXPECT_THAT(TakeFinding(), HasSubstr("freed by cuIpcCloseMemHandle"));
}

TEST_F(IpcTest, DISABLED_OtherFindsNothing) {
  CUdeviceptr data = 0;
  EXPECT_EQ(cu().IpcOpenMemHandle(&data, given_, 1), 1);
}

TEST_F(IpcTest, AnyBytesAreRefused) {
  const CUdeviceptr data = Allocate(4096);
  const internal::CUipcMemHandle good = HandleOf(data);
  for (int byte = 0; byte < 64; ++byte) {
    internal::CUipcMemHandle bad = good;
    bad.reserved[byte] ^= 0x10;
    CUdeviceptr opened = 0;
    EXPECT_EQ(cu().IpcOpenMemHandle(&opened, bad, 1), 1) << "byte " << byte;
  }
}

TEST_F(IpcTest, MemoryOfPoolsHasNoHandle) {
  internal::CUmemPoolProps props = {};
  props.allocType = internal::kCudaAllocationPinned;
  props.location = {internal::kCudaLocationDevice, 0};
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(cu().MemPoolCreate(&pool, &props), 0);
  CUdeviceptr data = 0;
  ASSERT_EQ(cu().MemAllocFromPoolAsync(&data, 4096, pool, nullptr), 0);
  internal::CUipcMemHandle handle;
  EXPECT_EQ(cu().IpcGetMemHandle(&handle, data), 1);
}

}  // namespace
}  // namespace sherd::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const char* const digits = argv[i] + std::strlen("--handle=");
    for (int byte = 0; byte < 64; ++byte) {
      unsigned value = 0;
      std::sscanf(digits + 2 * byte, "%2x", &value);
      sherd::testing::IpcTest::given_.reserved[byte] = static_cast<char>(value);
    }
  }
  return RUN_ALL_TESTS();
}
