#include "sherd/backends/cuda/cuda_plugin.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/cuda/emulated_driver.h"
#include "sherd/backends/device_abi.h"
#include "sherd/testing/kits/allocation_counter.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::AllocationsOfThisThread;
using ::sherd::testing::UncountedAllocations;

// A function of the driver, whose allocations are not the plugin's.
template <auto kFunction, typename Function>
struct Uncounted;
template <auto kFunction, typename... Parameters>
struct Uncounted<kFunction, CUresult (*)(Parameters...)> {
  static CUresult Call(Parameters... parameters) {
    const UncountedAllocations uncounted;
    return (EmulatedDriver::cuda().*kFunction)(parameters...);
  }
};

CudaDevices::Opener UncountedOpener() {
  return [](CudaLibrary* library, sherd_error_v0* error) {
    const sherd_code code = EmulatedDriver::Opener()(library, error);
#define SHERD_CUDA_UNCOUNTED(name, symbol, parameters) \
  library->functions.name =                            \
      Uncounted<&CudaFunctions::name, decltype(CudaFunctions::name)>::Call;
    SHERD_CUDA_FUNCTIONS(SHERD_CUDA_UNCOUNTED)
#undef SHERD_CUDA_UNCOUNTED
    return code;
  };
}

class CudaPluginTest : public ::testing::Test {
 protected:
  CudaPluginTest() { error_.struct_size = sizeof(error_); }

  void* Allocate(int device, uint64_t bytes, void* stream = nullptr) {
    void* data = nullptr;
    EXPECT_EQ(plugin_.Allocate(device, bytes, stream, &data, &error_), SHERD_OK)
        << error_.text;
    return data;
  }

  void* TakeEvent(int device) {
    void* event = nullptr;
    EXPECT_EQ(plugin_.TakeEvent(device, &event, &error_), SHERD_OK);
    return event;
  }

  bool ErrorSays(const char* part) const {
    return absl::StrContains(error_.text, part);
  }

  void HasNoPools() {
    driver_.Answer(
        absl::StrCat("cuDeviceGetAttribute(", kCudaMemoryPoolsSupported, ","),
        "value=0");
  }

  static std::string FreeOf(const void* data, CUstream stream) {
    return absl::StrCat("cuMemFreeAsync(", AddressText(data), ", ",
                        AddressText(stream), ")");
  }

  EmulatedDriver driver_;
  CudaPlugin plugin_{UncountedOpener(), nullptr};
  sherd_error_v0 error_ = {};
};

TEST_F(CudaPluginTest, ReportsVersionAndPath) {
  EXPECT_EQ(std::string(plugin_.LibraryVersion()), "driver 13.0 from emulated");
}

TEST_F(CudaPluginTest, HasNoVersionWithoutDriver) {
  CudaPlugin plugin(
      [](CudaLibrary*, sherd_error_v0*) { return sherd_code{SHERD_SYSTEM}; },
      nullptr);
  EXPECT_EQ(plugin.LibraryVersion(), nullptr);
}

TEST_F(CudaPluginTest, RefusesDevicesThatDoNotExist) {
  for (const int device : {-1, 2, INT32_MAX}) {
    void* data = nullptr;
    EXPECT_EQ(plugin_.Allocate(device, 8, nullptr, &data, &error_),
              SHERD_INVALID_ARGUMENT);
    EXPECT_EQ(error_.text, "there is no CUDA device " + std::to_string(device) +
                               ": this process sees 2, numbered from 0 "
                               "(CUDA_VISIBLE_DEVICES)");
  }
  EXPECT_EQ(driver_.Count("cuDevicePrimaryCtxRetain"), 0);
}

TEST_F(CudaPluginTest, DescribesADeviceWithoutUsingIt) {
  sherd_device_info_v0 info = {};
  ASSERT_EQ(plugin_.Describe(1, &info, &error_), SHERD_OK);
  EXPECT_EQ(std::string(info.name), "Emulated GPU");
  EXPECT_EQ(std::string(info.bus_id), "0000:41:00.0");
  EXPECT_EQ(info.multiprocessors, 132);
  EXPECT_EQ(info.compute_major, 9);
  EXPECT_EQ(info.compute_minor, 0);
  EXPECT_EQ(info.total_bytes, 1u << 30);
  EXPECT_EQ(info.free_bytes, 0u);
  EXPECT_EQ(driver_.Count("cuDevicePrimaryCtxRetain"), 0);

  Allocate(1, 8);
  ASSERT_EQ(plugin_.Describe(1, &info, &error_), SHERD_OK);
  EXPECT_EQ(info.free_bytes, (1u << 30) - 8);
}

// The arguments of the plugin's functions, all of device 1.
struct Used {
  CudaPlugin& plugin;
  void* stream = nullptr;
  void* event = nullptr;
  void* data = nullptr;
  int32_t number = 0;
  sherd_device_memory_v0 memory = {};
  sherd_device_handle_v0 handle = {};
};

sherd_code Prepare(Used& used, sherd_error_v0* error) {
  used.stream = EmulatedDriver::NewStream(1);
  const sherd_code code = used.plugin.TakeEvent(1, &used.event, error);
  return code != SHERD_OK
             ? code
             : used.plugin.Allocate(1, 8, used.stream, &used.data, error);
}

// Every function that has to do with a device.
struct Function {
  const char* name;
  // The one of the driver that fails it.
  const char* symbol;
  std::function<sherd_code(Used& used, sherd_error_v0*)> call;
};

std::vector<Function> Functions() {
  return {
      {"Allocate", "cuMemAllocFromPoolAsync",
       [](Used& u, sherd_error_v0* e) {
         void* out = nullptr;
         return u.plugin.Allocate(1, 8, u.stream, &out, e);
       }},
      {"Deallocate", "cuMemFreeAsync",
       [](Used& u, sherd_error_v0* e) {
         return u.plugin.Deallocate(1, u.data, 8, u.stream, e);
       }},
      {"Statistics", "cuMemPoolGetAttribute",
       [](Used& u, sherd_error_v0* e) {
         return u.plugin.Statistics(1, &u.memory, e);
       }},
      {"Trim", "cuMemPoolTrimTo",
       [](Used& u, sherd_error_v0* e) { return u.plugin.Trim(e); }},
      {"Locate", "cuPointerGetAttributes",
       [](Used& u, sherd_error_v0* e) {
         return u.plugin.Locate(u.data, &u.number, e);
       }},
      {"CreateStream", "cuStreamCreateWithPriority",
       [](Used& u, sherd_error_v0* e) {
         void* out = nullptr;
         return u.plugin.CreateStream(1, true, &out, e);
       }},
      {"DestroyStream", "cuStreamDestroy",
       [](Used& u, sherd_error_v0* e) {
         return u.plugin.DestroyStream(1, u.stream, e);
       }},
      {"IsCapturing", "cuStreamIsCapturing",
       [](Used& u, sherd_error_v0* e) {
         return u.plugin.IsCapturing(1, u.stream, &u.number, e);
       }},
      {"RecordEvent", "cuEventRecord",
       [](Used& u, sherd_error_v0* e) {
         return u.plugin.RecordEvent(1, u.event, u.stream, e);
       }},
      {"WaitEvent", "cuStreamWaitEvent",
       [](Used& u, sherd_error_v0* e) {
         return u.plugin.WaitEvent(1, u.stream, u.event, e);
       }},
      {"QueryEvent", "cuEventQuery",
       [](Used& u, sherd_error_v0* e) {
         return u.plugin.QueryEvent(u.event, e);
       }},
      {"CopyBytes", "cuMemcpyAsync",
       [](Used& u, sherd_error_v0* e) {
         return u.plugin.work().CopyBytes(1, u.stream, u.data, &u.number, 4, e);
       }},
      {"AllocateShared", "cuMemAlloc",
       [](Used& u, sherd_error_v0* e) {
         void* out = nullptr;
         return u.plugin.AllocateShared(1, 8, &out, e);
       }},
      {"ExportMemory", "cuIpcGetMemHandle",
       [](Used& u, sherd_error_v0* e) {
         void* out = nullptr;
         const sherd_code code = u.plugin.AllocateShared(1, 8, &out, e);
         return code != SHERD_OK
                    ? code
                    : u.plugin.ExportMemory(1, out, 8, &u.handle, e);
       }},
      {"ImportMemory", "cuIpcOpenMemHandle",
       [](Used& u, sherd_error_v0* e) {
         void* out = nullptr;
         sherd_code code = u.plugin.AllocateShared(1, 8, &out, e);
         if (code == SHERD_OK) {
           code = u.plugin.ExportMemory(1, out, 8, &u.handle, e);
         }
         return code != SHERD_OK ? code
                                 : u.plugin.ImportMemory(1, u.handle, &out, e);
       }},
      {"Reach", "cuCtxEnablePeerAccess",
       [](Used& u, sherd_error_v0* e) {
         return u.plugin.Reach(1, 0, &u.number, e);
       }},
  };
}

TEST_F(CudaPluginTest, LeavesTheCallersContextAsItWas) {
  // The other process is this one.
  driver_.Answer("cuIpcOpenMemHandle", "own");
  for (const CUcontext callers :
       {CUcontext{}, EmulatedDriver::ContextOf(0), EmulatedDriver::ContextOf(1),
        EmulatedDriver::OtherContextOf(1)}) {
    std::vector<CUcontext> contexts;
    if (callers != nullptr) contexts.push_back(callers);
    for (const Function& function : Functions()) {
      SCOPED_TRACE(function.name);
      Used used = {.plugin = plugin_};
      ASSERT_EQ(Prepare(used, &error_), SHERD_OK) << error_.text;
      EmulatedDriver::SetContexts(contexts);
      EmulatedDriver::SetCaptureMode(1);
      EXPECT_EQ(function.call(used, &error_), SHERD_OK) << error_.text;
      EXPECT_EQ(EmulatedDriver::Contexts(), contexts);
      EXPECT_EQ(EmulatedDriver::CaptureMode(), 1);
    }
  }
}

// The caller queued the work that failed.
TEST_F(CudaPluginTest, AnErrorThatTheCallersKernelLeftIsNamedEverywhere) {
  for (const Function& function : Functions()) {
    SCOPED_TRACE(function.name);
    driver_.Restart();
    // Short numbers: the longest text fits.
    sherd_emulated_gpu_set_device_bytes(4 << 20);
    CudaPlugin plugin(EmulatedDriver::Opener(), nullptr);
    Used used = {.plugin = plugin};
    ASSERT_EQ(Prepare(used, &error_), SHERD_OK) << error_.text;
    const std::vector<CUcontext> contexts = {EmulatedDriver::ContextOf(0)};
    EmulatedDriver::SetContexts(contexts);
    driver_.Fail(function.symbol, kCudaIllegalAddress);
    EXPECT_EQ(function.call(used, &error_), SHERD_SYSTEM);
    EXPECT_EQ(error_.native_code, kCudaIllegalAddress);
    EXPECT_TRUE(ErrorSays(function.symbol)) << error_.text;
    EXPECT_TRUE(ErrorSays("CUDA_ERROR_ILLEGAL_ADDRESS (700)")) << error_.text;
    EXPECT_TRUE(ErrorSays("queued earlier on this GPU failed")) << error_.text;
    EXPECT_TRUE(ErrorSays("restart the process")) << error_.text;
    EXPECT_EQ(EmulatedDriver::Contexts(), contexts);
    EXPECT_EQ(EmulatedDriver::CaptureMode(), 0);
  }
}

TEST_F(CudaPluginTest, AContextThatCannotBeMadeCurrentIsAnError) {
  Allocate(1, 8);
  driver_.Fail("cuCtxPushCurrent", kCudaContextIsDestroyed);
  void* data = nullptr;
  EXPECT_EQ(plugin_.Allocate(1, 8, nullptr, &data, &error_), SHERD_SYSTEM);
  EXPECT_TRUE(ErrorSays("cuCtxPushCurrent")) << error_.text;
  EXPECT_TRUE(EmulatedDriver::Contexts().empty());
}

TEST_F(CudaPluginTest, TriesAgainToUseADeviceThatCouldNotBeUsed) {
  for (const char* symbol : {"cuDevicePrimaryCtxRetain", "cuMemPoolCreate",
                             "cuMemPoolSetAttribute", "cuDeviceGetAttribute"}) {
    SCOPED_TRACE(symbol);
    driver_.Restart();
    CudaPlugin plugin(EmulatedDriver::Opener(), nullptr);
    driver_.Fail(symbol, kCudaOutOfMemory);
    void* data = nullptr;
    EXPECT_EQ(plugin.Allocate(0, 8, nullptr, &data, &error_), SHERD_RESOURCE);
    EXPECT_TRUE(ErrorSays(symbol)) << error_.text;
    EXPECT_TRUE(EmulatedDriver::Contexts().empty());
    driver_.Pass(symbol);
    EXPECT_EQ(plugin.Allocate(0, 8, nullptr, &data, &error_), SHERD_OK);
    EXPECT_TRUE(EmulatedDriver::Contexts().empty());
  }
}

TEST_F(CudaPluginTest, RetainsEachContextOnce) {
  Allocate(0, 8);
  Allocate(1, 8);
  Allocate(0, 8);
  EXPECT_EQ(driver_.Count("cuDevicePrimaryCtxRetain"), 2);
  EXPECT_EQ(driver_.Count("cuMemPoolCreate"), 2);
}

TEST_F(CudaPluginTest, CurrentDeviceIsThatOfTheCallersContext) {
  int32_t device = -1;
  ASSERT_EQ(plugin_.GetCurrent(&device, &error_), SHERD_OK);
  EXPECT_EQ(device, 0);

  ASSERT_EQ(plugin_.SetCurrent(1, &error_), SHERD_OK);
  EXPECT_EQ(EmulatedDriver::Contexts(),
            std::vector<CUcontext>{EmulatedDriver::ContextOf(1)});
  ASSERT_EQ(plugin_.GetCurrent(&device, &error_), SHERD_OK);
  EXPECT_EQ(device, 1);

  driver_.ForgetCalls();
  ASSERT_EQ(plugin_.SetCurrent(1, &error_), SHERD_OK);
  EXPECT_EQ(driver_.Count("cuCtxSetCurrent"), 0);

  // A context of device 0 that is not the primary one.
  EmulatedDriver::SetContexts({EmulatedDriver::OtherContextOf(0)});
  ASSERT_EQ(plugin_.GetCurrent(&device, &error_), SHERD_OK);
  EXPECT_EQ(device, 0);

  EXPECT_EQ(plugin_.SetCurrent(7, &error_), SHERD_INVALID_ARGUMENT);
}

TEST_F(CudaPluginTest, HotCallsMakeFewDriverCallsAndAllocateNothing) {
  CUstream const stream = EmulatedDriver::NewStream(1);
  void* const event = TakeEvent(1);
  ASSERT_EQ(plugin_.SetCurrent(1, &error_), SHERD_OK);
  void* const data = Allocate(1, 8, stream);

  driver_.ForgetCalls();
  int64_t before = AllocationsOfThisThread();
  EXPECT_EQ(plugin_.RecordEvent(1, event, stream, &error_), SHERD_OK);
  EXPECT_EQ(plugin_.WaitEvent(1, stream, event, &error_), SHERD_OK);
  EXPECT_EQ(plugin_.work().CopyBytes(1, stream, data, data, 8, &error_),
            SHERD_OK);
  EXPECT_EQ(AllocationsOfThisThread(), before);
  // The function, and which context is current.
  EXPECT_EQ(driver_.calls().size(), 6u);
  EXPECT_EQ(driver_.Count("cuCtxGetCurrent"), 3);

  EmulatedDriver::Synchronize(stream);
  driver_.ForgetCalls();
  before = AllocationsOfThisThread();
  EXPECT_EQ(plugin_.QueryEvent(event, &error_), SHERD_OK);
  // The function, and the mode of captures there and back.
  EXPECT_EQ(AllocationsOfThisThread(), before);
  EXPECT_EQ(driver_.calls().size(), 3u);

  void* again = nullptr;
  driver_.ForgetCalls();
  before = AllocationsOfThisThread();
  plugin_.ReturnEvent(1, event);
  EXPECT_EQ(plugin_.TakeEvent(1, &again, &error_), SHERD_OK);
  EXPECT_EQ(AllocationsOfThisThread(), before);
  EXPECT_EQ(driver_.Count("cuEventCreate"), 0);
}

TEST_F(CudaPluginTest, EventsComeFromThePoolOfTheirDevice) {
  void* const first = TakeEvent(0);
  void* const other = TakeEvent(1);
  plugin_.ReturnEvent(0, first);
  plugin_.ReturnEvent(1, other);
  EXPECT_EQ(TakeEvent(0), first);
  EXPECT_EQ(TakeEvent(1), other);
  EXPECT_NE(TakeEvent(0), first);
  EXPECT_EQ(driver_.Count("cuEventCreate"), 3);
}

TEST_F(CudaPluginTest, EventsHaveNoTiming) {
  TakeEvent(0);
  EXPECT_EQ(driver_.CallsOf("cuEventCreate"),
            std::vector<std::string>{absl::StrCat(
                "cuEventCreate(flags ", kCudaEventDisableTiming, ")")});
}

TEST_F(CudaPluginTest, AnEventThatCannotBeCreatedIsAnError) {
  driver_.Fail("cuEventCreate", kCudaOutOfMemory);
  void* event = nullptr;
  EXPECT_EQ(plugin_.TakeEvent(0, &event, &error_), SHERD_RESOURCE);
  EXPECT_TRUE(ErrorSays("cuEventCreate: CUDA_ERROR_OUT_OF_MEMORY"));
}

TEST_F(CudaPluginTest, QueryReportsWhetherAnEventHasHappened) {
  CUstream const stream = EmulatedDriver::NewStream(0);
  void* const event = TakeEvent(0);
  EXPECT_EQ(plugin_.QueryEvent(event, &error_), SHERD_OK);
  int mode = -1;
  driver_.OnCall([&](const std::string& call) {
    if (call == "cuEventQuery()") mode = EmulatedDriver::CaptureMode();
  });
  {
    const auto held = EmulatedDriver::HoldStreams();
    EXPECT_EQ(plugin_.RecordEvent(0, event, stream, &error_), SHERD_OK);
    EXPECT_EQ(plugin_.QueryEvent(event, &error_), SHERD_IN_PROGRESS);
  }
  // Or else a capture of another thread would break.
  EXPECT_EQ(mode, kCudaCaptureModeRelaxed);
  EXPECT_EQ(EmulatedDriver::CaptureMode(), 0);
  EmulatedDriver::Synchronize(stream);
  EXPECT_EQ(plugin_.QueryEvent(event, &error_), SHERD_OK);
  EmulatedDriver::BeginCapture(stream);
  EXPECT_EQ(plugin_.RecordEvent(0, event, stream, &error_), SHERD_OK);
  EXPECT_EQ(plugin_.QueryEvent(event, &error_), SHERD_UNSUPPORTED);
  EXPECT_FALSE(EmulatedDriver::EndCapture(stream));
}

TEST_F(CudaPluginTest, QueryGivesADriverThatWantsOneTheEventsContext) {
  CUstream const stream = EmulatedDriver::NewStream(1);
  void* const event = TakeEvent(1);
  ASSERT_TRUE(EmulatedDriver::Contexts().empty());
  driver_.Answer("cuEventQuery", "needs_context");
  std::vector<std::vector<CUcontext>> contexts;
  driver_.OnCall([&](const std::string& call) {
    if (call == "cuEventQuery()") {
      contexts.push_back(EmulatedDriver::Contexts());
    }
  });
  {
    const auto held = EmulatedDriver::HoldStreams();
    EXPECT_EQ(plugin_.RecordEvent(1, event, stream, &error_), SHERD_OK);
    EXPECT_EQ(plugin_.QueryEvent(event, &error_), SHERD_IN_PROGRESS);
  }
  EXPECT_EQ(contexts, (std::vector<std::vector<CUcontext>>{
                          {}, {EmulatedDriver::ContextOf(1)}}));
  EXPECT_TRUE(EmulatedDriver::Contexts().empty());
}

TEST_F(CudaPluginTest, StreamsHavePriorities) {
  void* stream = nullptr;
  ASSERT_EQ(plugin_.CreateStream(0, false, &stream, &error_), SHERD_OK);
  ASSERT_EQ(plugin_.CreateStream(0, true, &stream, &error_), SHERD_OK);
  EXPECT_EQ(driver_.CallsOf("cuStreamCreateWithPriority"),
            (std::vector<std::string>{
                "cuStreamCreateWithPriority(flags 1, priority 0)",
                "cuStreamCreateWithPriority(flags 1, priority -5)"}));
  static_assert(kCudaStreamNonBlocking == 1);
  // It is the driver's.
  EmulatedDriver::Synchronize(static_cast<CUstream>(stream));
}

TEST_F(CudaPluginTest, ReportsWhetherAStreamIsCaptured) {
  CUstream const stream = EmulatedDriver::NewStream(0);
  int32_t capturing = -1;
  ASSERT_EQ(plugin_.IsCapturing(0, stream, &capturing, &error_), SHERD_OK);
  EXPECT_EQ(capturing, 0);
  EmulatedDriver::BeginCapture(stream);
  ASSERT_EQ(plugin_.IsCapturing(0, stream, &capturing, &error_), SHERD_OK);
  EXPECT_EQ(capturing, 1);
  ASSERT_EQ(plugin_.IsCapturing(0, nullptr, &capturing, &error_), SHERD_OK);
  EXPECT_EQ(capturing, 0);
  // A stream that waits for the default stream is captured: nothing may be
  // queued there.
  CUstream const blocking = EmulatedDriver::NewStream(0, /*flags=*/0);
  EmulatedDriver::BeginCapture(blocking);
  ASSERT_EQ(plugin_.IsCapturing(0, nullptr, &capturing, &error_), SHERD_OK);
  EXPECT_EQ(capturing, 1);
  EXPECT_TRUE(EmulatedDriver::EndCapture(blocking));
  EXPECT_TRUE(EmulatedDriver::EndCapture(stream));
  EXPECT_EQ(plugin_.IsCapturing(2, nullptr, &capturing, &error_),
            SHERD_INVALID_ARGUMENT);
}

TEST_F(CudaPluginTest, ThePoolKeepsFreedMemory) {
  void* const data = Allocate(1, 8);
  EXPECT_EQ(driver_.CallsOf("cuMemPoolSetAttribute"),
            std::vector<std::string>{absl::StrCat("cuMemPoolSetAttribute(",
                                                  kCudaPoolReleaseThreshold,
                                                  " = ", UINT64_MAX, ")")});
  CUstream const stream = EmulatedDriver::NewStream(1);
  EXPECT_EQ(plugin_.Deallocate(1, data, 8, nullptr, &error_), SHERD_OK);
  EmulatedDriver::Synchronize(stream);
  sherd_device_memory_v0 memory = {};
  ASSERT_EQ(plugin_.Statistics(1, &memory, &error_), SHERD_OK);
  EXPECT_EQ(memory.live_bytes, 0u);
  EXPECT_EQ(memory.cached_bytes, 8u);
}

TEST_F(CudaPluginTest, OutOfMemoryReportsHowMuchThereIs) {
  sherd_emulated_gpu_set_device_bytes(1000);
  Allocate(1, 900);
  void* data = nullptr;
  EXPECT_EQ(plugin_.Allocate(1, 4096, nullptr, &data, &error_), SHERD_RESOURCE);
  EXPECT_EQ(std::string(error_.text),
            "cuMemAllocFromPoolAsync: CUDA_ERROR_OUT_OF_MEMORY (2) for 4096 "
            "bytes on device 1, where 100 of 1000 are free; free memory, trim "
            "the pools, or use more devices");
}

TEST_F(CudaPluginTest, AnAllocationOfMostOfTheAddressSpaceIsOutOfMemory) {
  void* data = nullptr;
  for (const uint64_t bytes : {UINT64_MAX, UINT64_MAX / 2}) {
    EXPECT_EQ(plugin_.Allocate(0, bytes, nullptr, &data, &error_),
              SHERD_RESOURCE);
    EXPECT_EQ(plugin_.AllocateShared(0, bytes, &data, &error_), SHERD_RESOURCE);
    EXPECT_EQ(plugin_.AllocatePinned(bytes, &data, &error_), SHERD_RESOURCE);
  }
}

TEST_F(CudaPluginTest, FreesCachedMemoryBeforeItRunsOut) {
  sherd_emulated_gpu_set_device_bytes(4 << 20);
  void* shared = nullptr;
  ASSERT_EQ(plugin_.AllocateShared(0, 8, &shared, &error_), SHERD_OK);
  ASSERT_EQ(plugin_.DeallocateShared(0, shared, 8, &error_), SHERD_OK);
  EXPECT_EQ(EmulatedDriver::NumPieces(), 1u);
  void* const data = Allocate(0, 3 << 20);
  EXPECT_EQ(driver_.Count("cuMemAllocFromPoolAsync"), 2);
  ASSERT_EQ(EmulatedDriver::NumPieces(), 1u);
  EXPECT_EQ(EmulatedDriver::Memory(MemoryLocation::Kind::kDevice)[0].base,
            data);
}

TEST_F(CudaPluginTest, ThePoolIsTrimmedIfMemoryForOthersRunsOut) {
  driver_.Return("cuMemAlloc", kCudaOutOfMemory);
  void* shared = nullptr;
  EXPECT_EQ(plugin_.AllocateShared(0, 8, &shared, &error_), SHERD_OK);
  std::vector<std::string> calls = driver_.calls();
  std::erase_if(calls, [](const std::string& call) {
    return call != "cuMemAlloc()" && !absl::StartsWith(call, "cuMemPoolTrimTo");
  });
  EXPECT_EQ(calls, (std::vector<std::string>{
                       "cuMemAlloc()", "cuMemPoolTrimTo(0)", "cuMemAlloc()"}));
}

TEST_F(CudaPluginTest, OldDriversReuseNothingWithoutAnEventBetween) {
  for (const int version : {11040, 11050}) {
    SCOPED_TRACE(version);
    driver_.Restart();
    driver_.Answer("cuDriverGetVersion", absl::StrCat("value=", version));
    CudaPlugin plugin(EmulatedDriver::Opener(), nullptr);
    void* data = nullptr;
    ASSERT_EQ(plugin.Allocate(0, 8, nullptr, &data, &error_), SHERD_OK);
    const std::string reuse = absl::StrCat("cuMemPoolSetAttribute(",
                                           kCudaPoolReuseOpportunistic, " = ");
    EXPECT_EQ(driver_.Count(reuse), version < 11050 ? 1 : 0);
    EXPECT_EQ(driver_.Count(reuse + "0)"), version < 11050 ? 1 : 0);
  }
}

TEST_F(CudaPluginTest, FreesInTheOrderOfTheStream) {
  CUstream const stream = EmulatedDriver::NewStream(0);
  void* const data = Allocate(0, 8, stream);
  EXPECT_EQ(plugin_.Deallocate(0, data, 8, stream, &error_), SHERD_OK);
  EXPECT_EQ(driver_.CallsOf("cuMemFreeAsync"),
            std::vector<std::string>{FreeOf(data, stream)});
  EXPECT_EQ(driver_.Count("cuStreamSynchronize"), 0);
}

TEST_F(CudaPluginTest, FreesMemoryOutsideOfTheGraphAfterTheCapture) {
  const CUstream stream = EmulatedDriver::NewStream(0);
  const CUstream other = EmulatedDriver::NewStream(0);
  void* const data = Allocate(0, 8, stream);
  EmulatedDriver::BeginCapture(stream);
  EXPECT_EQ(plugin_.Deallocate(0, data, 8, stream, &error_), SHERD_OK);
  EXPECT_EQ(EmulatedDriver::NumPieces(), 1u);
  // A call that the driver refuses would end the capture.
  EXPECT_EQ(driver_.Count("cuMemFreeAsync"), 0);
  // Memory of the graph is freed within it.
  void* const graphs = Allocate(0, 8, stream);
  EXPECT_EQ(plugin_.Deallocate(0, graphs, 8, stream, &error_), SHERD_OK);
  EXPECT_EQ(driver_.Count("cuMemFreeAsync"), 1);

  // Earlier work on the stream may still use the memory.
  Allocate(0, 8, other);
  EXPECT_EQ(driver_.Count("cuMemFreeAsync"), 1);
  EXPECT_TRUE(EmulatedDriver::EndCapture(stream));
  Allocate(0, 8, other);
  EXPECT_EQ(
      driver_.CallsOf("cuMemFreeAsync"),
      (std::vector<std::string>{FreeOf(graphs, stream), FreeOf(data, stream)}));
}

TEST_F(CudaPluginTest,
       FreesMemoryThatAwaitsACaptureBeforeItsStreamIsDestroyed) {
  const CUstream stream = EmulatedDriver::NewStream(0);
  void* const data = Allocate(0, 8, stream);
  EmulatedDriver::BeginCapture(stream);
  EXPECT_EQ(plugin_.Deallocate(0, data, 8, stream, &error_), SHERD_OK);
  EXPECT_TRUE(EmulatedDriver::EndCapture(stream));
  EXPECT_EQ(plugin_.DestroyStream(0, stream, &error_), SHERD_OK);
  EXPECT_EQ(driver_.CallsOf("cuMemFreeAsync"),
            std::vector<std::string>{FreeOf(data, stream)});
}

TEST_F(CudaPluginTest, WaitsForFreedMemoryBeforeItRunsOutOfMemory) {
  const CUstream stream = EmulatedDriver::NewStream(0);
  const std::string wait =
      absl::StrCat("cuStreamSynchronize(", AddressText(stream), ")");
  int mode = -1;
  driver_.OnCall([&](const std::string& call) {
    if (call == wait) mode = EmulatedDriver::CaptureMode();
  });
  // Until the first wait.
  driver_.Return("cuMemAllocFromPoolAsync", kCudaOutOfMemory);
  Allocate(0, 8, stream);
  std::vector<std::string> calls = driver_.calls();
  std::erase_if(calls, [](const std::string& call) {
    return !absl::StartsWith(call, "cuMemAllocFromPoolAsync") &&
           !absl::StartsWith(call, "cuStreamSynchronize");
  });
  const std::string allocate =
      absl::StrCat("cuMemAllocFromPoolAsync(8, ", AddressText(stream), ")");
  EXPECT_EQ(calls, (std::vector<std::string>{allocate, wait, allocate}));
  // Or else a capture of another thread would break.
  EXPECT_EQ(mode, kCudaCaptureModeRelaxed);
}

TEST_F(CudaPluginTest, AFreeThatTheDriverRefusesIsAnError) {
  EXPECT_EQ(plugin_.Deallocate(0, &error_, 8, nullptr, &error_),
            SHERD_INVALID_ARGUMENT);
  EXPECT_TRUE(ErrorSays("cuMemFreeAsync: CUDA_ERROR_INVALID_VALUE (1)"));
}

TEST_F(CudaPluginTest, FreeingAfterTheDriverHasEndedIsNotAnError) {
  void* const data = Allocate(0, 8);
  driver_.Fail("cuMemFreeAsync", kCudaDeinitialized);
  EXPECT_EQ(plugin_.Deallocate(0, data, 8, nullptr, &error_), SHERD_OK);
  driver_.Fail("cuCtxGetCurrent", kCudaDeinitialized);
  driver_.Fail("cuCtxPushCurrent", kCudaDeinitialized);
  EXPECT_EQ(plugin_.Deallocate(0, data, 8, nullptr, &error_), SHERD_OK);
}

TEST_F(CudaPluginTest, ADeviceWithoutPoolsHasMemory) {
  HasNoPools();
  CUstream const stream = EmulatedDriver::NewStream(0);
  void* const data = Allocate(0, 8, stream);
  EXPECT_EQ(driver_.Count("cuMemAlloc"), 1);
  EXPECT_EQ(driver_.Count("cuMemPoolCreate"), 0);
  sherd_device_memory_v0 memory = {};
  ASSERT_EQ(plugin_.Statistics(0, &memory, &error_), SHERD_OK);
  EXPECT_EQ(memory.live_bytes, 8u);
  EXPECT_EQ(memory.cached_bytes, 0u);

  // The pending work of the stream is waited for.
  EXPECT_EQ(plugin_.Deallocate(0, data, 8, stream, &error_), SHERD_OK);
  EXPECT_EQ(driver_.Count("cuStreamSynchronize"), 1);
  EXPECT_EQ(EmulatedDriver::NumPieces(), 0u);
  ASSERT_EQ(plugin_.Statistics(0, &memory, &error_), SHERD_OK);
  EXPECT_EQ(memory.live_bytes, 0u);
  EXPECT_EQ(plugin_.Trim(&error_), SHERD_OK);
}

TEST_F(CudaPluginTest, ADeviceWithoutPoolsHasNoneForGraphs) {
  HasNoPools();
  const CUstream stream = EmulatedDriver::NewStream(0);
  EmulatedDriver::BeginCapture(stream);
  void* data = nullptr;
  EXPECT_EQ(plugin_.Allocate(0, 8, stream, &data, &error_), SHERD_UNSUPPORTED);
  EXPECT_TRUE(ErrorSays("this device has no pools")) << error_.text;
  EXPECT_EQ(EmulatedDriver::NumPieces(), 0u);
  EXPECT_TRUE(EmulatedDriver::EndCapture(stream));
}

TEST_F(CudaPluginTest, CountsMemory) {
  void* const most = Allocate(0, 1000);
  EXPECT_EQ(plugin_.Deallocate(0, most, 1000, nullptr, &error_), SHERD_OK);
  Allocate(0, 300);
  sherd_device_memory_v0 memory = {};
  ASSERT_EQ(plugin_.Statistics(0, &memory, &error_), SHERD_OK);
  EXPECT_EQ(memory.live_bytes, 300u);
  EXPECT_EQ(memory.cached_bytes, 700u);
  void* shared = nullptr;
  ASSERT_EQ(plugin_.AllocateShared(0, 1, &shared, &error_), SHERD_OK);
  ASSERT_EQ(plugin_.Statistics(0, &memory, &error_), SHERD_OK);
  EXPECT_EQ(memory.live_bytes, 300u + (2 << 20));
  ASSERT_EQ(plugin_.DeallocateShared(0, shared, 1, &error_), SHERD_OK);
  ASSERT_EQ(plugin_.Statistics(0, &memory, &error_), SHERD_OK);
  EXPECT_EQ(memory.live_bytes, 300u);
  EXPECT_EQ(memory.cached_bytes, 700u + (2 << 20));
  ASSERT_EQ(plugin_.Trim(&error_), SHERD_OK);
  ASSERT_EQ(plugin_.Statistics(0, &memory, &error_), SHERD_OK);
  EXPECT_EQ(memory.cached_bytes, 0u);
}

TEST_F(CudaPluginTest, PinnedMemoryIsReused) {
  void* first = nullptr;
  ASSERT_EQ(plugin_.AllocatePinned(5000, &first, &error_), SHERD_OK);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 4096, 0u);
  EXPECT_EQ(EmulatedDriver::PinnedBytes(first), 8192u);
  plugin_.DeallocatePinned(first, 5000);
  EXPECT_EQ(driver_.Count("cuMemFreeHost"), 0);

  void* second = nullptr;
  ASSERT_EQ(plugin_.AllocatePinned(8192, &second, &error_), SHERD_OK);
  EXPECT_EQ(second, first);
  void* third = nullptr;
  ASSERT_EQ(plugin_.AllocatePinned(1, &third, &error_), SHERD_OK);
  EXPECT_NE(third, first);
  plugin_.DeallocatePinned(second, 8192);
  plugin_.DeallocatePinned(third, 1);
  ASSERT_EQ(plugin_.Trim(&error_), SHERD_OK);
  EXPECT_EQ(EmulatedDriver::NumPinned(), 0u);
}

TEST_F(CudaPluginTest, PinnedMemoryIsAlignedWhateverTheDriverDoes) {
  driver_.Answer("cuMemHostAlloc", "misaligned");
  void* data = nullptr;
  ASSERT_EQ(plugin_.AllocatePinned(5000, &data, &error_), SHERD_OK);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4096, 0u);
  const std::vector<MemoryLocation> blocks =
      EmulatedDriver::Memory(MemoryLocation::Kind::kPinned);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_NE(reinterpret_cast<uintptr_t>(blocks[0].base) % 4096, 0u);
  EXPECT_GE(static_cast<char*>(data), static_cast<const char*>(blocks[0].base));
  EXPECT_LE(static_cast<char*>(data) + 5000,
            static_cast<const char*>(blocks[0].base) + blocks[0].bytes);
  plugin_.DeallocatePinned(data, 5000);
  Allocate(0, 8);
  ASSERT_EQ(plugin_.Trim(&error_), SHERD_OK);
  EXPECT_EQ(EmulatedDriver::NumPinned(), 0u);
}

TEST_F(CudaPluginTest, PinnedMemoryNeedsNoContextOfAnotherDevice) {
  Allocate(1, 8);
  void* data = nullptr;
  ASSERT_EQ(plugin_.AllocatePinned(1, &data, &error_), SHERD_OK);
  EXPECT_EQ(driver_.Count("cuDevicePrimaryCtxRetain"), 1);
}

TEST_F(CudaPluginTest, PinnedMemoryWastesLittle) {
  void* data = nullptr;
  for (const uint64_t bytes : {100'000u, 1'000'001u, 33'000'000u}) {
    ASSERT_EQ(plugin_.AllocatePinned(bytes, &data, &error_), SHERD_OK);
    EXPECT_GE(EmulatedDriver::PinnedBytes(data), bytes);
    EXPECT_LE(EmulatedDriver::PinnedBytes(data), bytes + bytes / 8);
  }
}

TEST_F(CudaPluginTest, CachedPinnedMemoryIsFreedBeforePinnedMemoryRunsOut) {
  void* kept = nullptr;
  ASSERT_EQ(plugin_.AllocatePinned(1, &kept, &error_), SHERD_OK);
  plugin_.DeallocatePinned(kept, 1);
  driver_.Fail("cuMemHostAlloc", kCudaOutOfMemory);
  void* data = nullptr;
  EXPECT_EQ(plugin_.AllocatePinned(1 << 20, &data, &error_), SHERD_RESOURCE);
  EXPECT_TRUE(
      ErrorSays("cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY (2) for "
                "1048576 pinned bytes"))
      << error_.text;
  EXPECT_EQ(data, nullptr);
  EXPECT_EQ(EmulatedDriver::NumPinned(), 0u);
}

TEST_F(CudaPluginTest, LocatesMemory) {
  void* const data = Allocate(0, 100);
  void* pinned = nullptr;
  ASSERT_EQ(plugin_.AllocatePinned(1, &pinned, &error_), SHERD_OK);
  int32_t device = 5;
  ASSERT_EQ(plugin_.Locate(static_cast<char*>(data) + 99, &device, &error_),
            SHERD_OK);
  EXPECT_EQ(device, 0);
  ASSERT_EQ(plugin_.Locate(pinned, &device, &error_), SHERD_OK);
  EXPECT_EQ(device, -1);
  ASSERT_EQ(plugin_.Locate(&device, &device, &error_), SHERD_OK);
  EXPECT_EQ(device, -2);
  for (const CUresult unknown : {kCudaInvalidValue, kCudaInvalidContext}) {
    driver_.Fail("cuPointerGetAttributes", unknown);
    ASSERT_EQ(plugin_.Locate(data, &device, &error_), SHERD_OK);
    EXPECT_EQ(device, -2);
  }
}

TEST_F(CudaPluginTest, LocatesMemoryWithAnyCurrentContext) {
  // The driver wants one.
  int32_t device = 5;
  ASSERT_EQ(plugin_.Locate(&device, &device, &error_), SHERD_OK);
  EXPECT_EQ(device, -2);
  EXPECT_EQ(driver_.Count("cuPointerGetAttributes"), 1);
  EXPECT_EQ(driver_.Count("cuDevicePrimaryCtxRetain"), 0);
  void* const data = Allocate(0, 100);
  ASSERT_EQ(plugin_.Locate(data, &device, &error_), SHERD_OK);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(driver_.Count("cuPointerGetAttributes"), 3);
  EXPECT_TRUE(EmulatedDriver::Contexts().empty());
}

TEST_F(CudaPluginTest, ReachesThePeersMemory) {
  Allocate(1, 8);
  const CUcontext peer = EmulatedDriver::ContextOf(0);
  std::vector<CUcontext> contexts;
  const std::string enable =
      absl::StrCat("cuCtxEnablePeerAccess(", AddressText(peer), ")");
  driver_.OnCall([&](const std::string& call) {
    if (call == enable) contexts = EmulatedDriver::Contexts();
  });
  int32_t reachable = -1;
  // The second time it is enabled already.
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(plugin_.Reach(1, 0, &reachable, &error_), SHERD_OK);
    EXPECT_EQ(reachable, 1);
  }
  EXPECT_EQ(driver_.CallsOf("cuCtxEnablePeerAccess"),
            std::vector<std::string>(2, enable));
  EXPECT_EQ(contexts, std::vector<CUcontext>{EmulatedDriver::ContextOf(1)});
  EXPECT_EQ(driver_.CallsOf("cuMemPoolSetAccess"),
            std::vector<std::string>(
                2, absl::StrCat("cuMemPoolSetAccess(device 1, flags ",
                                kCudaAccessReadWrite, ")")));

  driver_.Answer("cuDeviceCanAccessPeer", "value=0");
  ASSERT_EQ(plugin_.Reach(0, 1, &reachable, &error_), SHERD_OK);
  EXPECT_EQ(reachable, 0);
  ASSERT_EQ(plugin_.Reach(1, 1, &reachable, &error_), SHERD_OK);
  EXPECT_EQ(reachable, 1);
  EXPECT_EQ(plugin_.Reach(0, 9, &reachable, &error_), SHERD_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace sherd::internal
