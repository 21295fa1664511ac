#include "sherd/backends/cuda/cuda_driver.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/cuda_devices.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/cuda/emulated_driver.h"

namespace sherd::internal {
namespace {

sherd_error_v0 NoError() {
  sherd_error_v0 error = {};
  error.struct_size = sizeof(error);
  error.peer = -1;
  return error;
}

TEST(OpenCudaLibraryTest, WithoutDriverReportsWhatWasLookedForAndWhatToDo) {
  CudaLibrary library;
  sherd_error_v0 error = NoError();
  EXPECT_EQ(OpenCudaLibrary("/no/such/libcuda.so.1", &library, &error),
            SHERD_SYSTEM);
  const std::string text = error.text;
  EXPECT_TRUE(absl::StrContains(text, "no CUDA driver: /no/such/libcuda.so.1"))
      << text;
  EXPECT_TRUE(absl::StrContains(text, "install NVIDIA's driver")) << text;
  EXPECT_TRUE(absl::StrContains(text, "SHERD_CUDA_LIBRARY")) << text;
}

TEST(OpenCudaLibraryTest, RefusesALibraryThatIsNotADriver) {
  CudaLibrary library;
  sherd_error_v0 error = NoError();
  EXPECT_EQ(OpenCudaLibrary("libm.so.6", &library, &error), SHERD_SYSTEM);
  EXPECT_EQ(std::string(error.text),
            "libm.so.6 is not NVIDIA's CUDA driver: it lacks cuInit; see "
            "SHERD_CUDA_LIBRARY");
}

struct BadStart {
  const char* name;
  const char* symbol;
  CUresult result;
  const char* parts[3];
};

class StartCudaTest : public ::testing::TestWithParam<BadStart> {};

TEST_P(StartCudaTest, NamesFunctionCodeAndRemedy) {
  const BadStart& bad = GetParam();
  EmulatedDriver driver;
  driver.Fail(bad.symbol, bad.result);
  CudaDevices devices(driver.Opener(), nullptr);
  sherd_error_v0 error = NoError();
  EXPECT_EQ(devices.Start(&error), SHERD_SYSTEM);
  EXPECT_EQ(error.native_code, bad.result);
  for (const char* part : bad.parts) {
    EXPECT_TRUE(absl::StrContains(error.text, part)) << error.text;
  }
  EXPECT_TRUE(absl::StrContains(error.text, bad.symbol)) << error.text;

  // The same again, without asking the driver.
  driver.ForgetCalls();
  sherd_error_v0 again = NoError();
  EXPECT_EQ(devices.Start(&again), SHERD_SYSTEM);
  EXPECT_EQ(std::string(again.text), error.text);
  EXPECT_EQ(again.native_code, bad.result);
  EXPECT_TRUE(driver.calls().empty());
}

INSTANTIATE_TEST_SUITE_P(
    Failures, StartCudaTest,
    ::testing::Values(
        BadStart{"Stub",
                 "cuInit",
                 kCudaStubLibrary,
                 {"CUDA_ERROR_STUB_LIBRARY (34)", "stub", "LD_LIBRARY_PATH"}},
        BadStart{"Insufficient",
                 "cuInit",
                 35,
                 {"CUDA_ERROR_INSUFFICIENT_DRIVER (35)", "driver is too old",
                  "update"}},
        BadStart{"NoDevice",
                 "cuInit",
                 kCudaNoDevice,
                 {"CUDA_ERROR_NO_DEVICE (100)", "no GPU is visible",
                  "CUDA_VISIBLE_DEVICES"}},
        BadStart{"Forked",
                 "cuInit",
                 kCudaNotInitialized,
                 {"(3)", "fork()", "new programs"}},
        BadStart{"FabricManager",
                 "cuInit",
                 kCudaSystemNotReady,
                 {"(802)", "start", "nvidia-fabricmanager"}},
        BadStart{"Mismatch",
                 "cuInit",
                 kCudaSystemDriverMismatch,
                 {"(803)", "another version", "restart"}},
        BadStart{"Compat",
                 "cuInit",
                 kCudaCompatNotSupportedOnDevice,
                 {"(804)", "compatibility package", "LD_LIBRARY_PATH"}},
        BadStart{"NeverHeardOf",
                 "cuInit",
                 12345,
                 {"CUDA error (12345)", "nvidia-smi", "log"}},
        BadStart{"StubHasNoVersion",
                 "cuDriverGetVersion",
                 kCudaStubLibrary,
                 {"(34)", "stub", "SHERD_CUDA_LIBRARY"}},
        BadStart{"CannotCount",
                 "cuDeviceGetCount",
                 kCudaUnknown,
                 {"CUDA_ERROR_UNKNOWN (999)", "nvidia-smi", "log"}},
        BadStart{"CannotGet",
                 "cuDeviceGet",
                 kCudaInvalidDevice,
                 {"(101)", "nvidia-smi", "CUDA_VISIBLE_DEVICES"}}),
    [](const auto& info) { return info.param.name; });

TEST(StartCudaTest, RefusesADriverThatIsTooOldBeforeItInitialisesIt) {
  EmulatedDriver driver;
  driver.Answer("cuDriverGetVersion", "value=11010");
  CudaDevices devices(driver.Opener(), nullptr);
  sherd_error_v0 error = NoError();
  EXPECT_EQ(devices.Start(&error), SHERD_SYSTEM);
  EXPECT_EQ(std::string(error.text),
            "CUDA driver 11.1 from emulated is too old: update it to one of "
            "CUDA 11.2 or later");
  EXPECT_EQ(driver.Count("cuInit"), 0);
}

TEST(StartCudaTest, TakesTheOldestDriverThatItKnows) {
  EmulatedDriver driver;
  driver.Answer("cuDriverGetVersion",
                "value=" + std::to_string(kOldestCudaDriver));
  CudaDevices devices(driver.Opener(), nullptr);
  sherd_error_v0 error = NoError();
  EXPECT_EQ(devices.Start(&error), SHERD_OK);
  EXPECT_EQ(devices.version_text(), "driver 11.2 from emulated");
  EXPECT_EQ(devices.all().size(), 2u);
}

TEST(StartCudaTest, ADriverWithoutDevicesIsAnError) {
  EmulatedDriver driver;
  driver.Answer("cuDeviceGetCount", "value=0");
  CudaDevices devices(driver.Opener(), nullptr);
  sherd_error_v0 error = NoError();
  EXPECT_EQ(devices.Start(&error), SHERD_SYSTEM);
  EXPECT_TRUE(absl::StrContains(error.text, "no GPU is visible")) << error.text;
}

TEST(StartCudaTest, InitialisesNoDevice) {
  EmulatedDriver driver;
  CudaDevices devices(driver.Opener(), nullptr);
  sherd_error_v0 error = NoError();
  ASSERT_EQ(devices.Start(&error), SHERD_OK);
  EXPECT_EQ(driver.Count("cuDevicePrimaryCtxRetain"), 0);
}

TEST(EmulatedDriverTest, PlansAndCountsNothingThatDoesNotExist) {
  EmulatedDriver driver;
  const char* const kProblem = "expected calls of a function of CUDA's driver";
  EXPECT_DEATH(driver.Fail("cuMemAloc", 2), kProblem);
  EXPECT_DEATH(driver.Return("cuMemAlloc_v2", 2), kProblem);
  EXPECT_DEATH(driver.Answer("", "own"), kProblem);
  EXPECT_DEATH(driver.Pass("cuCtx"), kProblem);
  EXPECT_DEATH(driver.Count("ncclAbort(base 1)"), kProblem);
  EXPECT_DEATH(driver.CallsOf("MemAlloc"), kProblem);
  EXPECT_EQ(driver.Count("cuMemAlloc"), 0);
  EXPECT_EQ(driver.Count("cuGraphInstantiateWithFlags"), 0);
  EXPECT_EQ(driver.Count("ncclCommAbort(base 1"), 0);
}

TEST(EmulatedDriverTest, RecordsRequestsForNamesAndTextsOfErrors) {
  EmulatedDriver driver;
  const char* text = nullptr;
  EXPECT_EQ(driver.cuda().GetErrorName(kCudaOutOfMemory, &text), kCudaSuccess);
  EXPECT_EQ(driver.cuda().GetErrorString(kCudaOutOfMemory, &text),
            kCudaSuccess);
  EXPECT_EQ(driver.calls(), (std::vector<std::string>{"cuGetErrorName()",
                                                      "cuGetErrorString()"}));
}

TEST(EmulatedDriverTest, RefusesANullListOfDevices) {
  EmulatedDriver driver;
  EmulatedDriver::ContextOf(0);
  CUmemPoolProps props = {};
  props.allocType = kCudaAllocationPinned;
  props.location = {kCudaLocationDevice, 0};
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(driver.cuda().MemPoolCreate(&pool, &props), kCudaSuccess);
  EXPECT_EQ(driver.cuda().MemPoolSetAccess(pool, nullptr, 1),
            kCudaInvalidValue);
  EXPECT_EQ(driver.cuda().MemPoolSetAccess(pool, nullptr, 0), kCudaSuccess);
}

TEST(CudaVersionTextTest, HasMajorAndMinor) {
  EXPECT_EQ(CudaVersionText(13020), "13.2");
  EXPECT_EQ(CudaVersionText(11080), "11.8");
}

}  // namespace
}  // namespace sherd::internal
