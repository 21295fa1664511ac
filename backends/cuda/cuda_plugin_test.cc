#include "sherd/backends/cuda/cuda_plugin.h"

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/cuda/scripted_driver.h"
#include "sherd/backends/device_abi.h"

namespace {
int64_t num_allocations = 0;
}  // namespace

// Not inline, or GCC takes malloc and delete for a pair.
__attribute__((noinline)) void* operator new(size_t bytes) {
  ++num_allocations;
  void* const data = std::malloc(bytes);
  if (data == nullptr) std::abort();
  return data;
}
__attribute__((noinline)) void operator delete(void* data) noexcept {
  std::free(data);
}
__attribute__((noinline)) void operator delete(void* data, size_t) noexcept {
  std::free(data);
}

namespace sherd::internal {
namespace {

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

  ScriptedDriver driver_;
  CudaPlugin plugin_{driver_.Opener(), nullptr};
  sherd_error_v0 error_ = {};
};

TEST_F(CudaPluginTest, SaysVersionAndPath) {
  EXPECT_EQ(std::string(plugin_.LibraryVersion()), "driver 13.0 from scripted");
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
  EXPECT_EQ(driver_.calls("cuDevicePrimaryCtxRetain"), 0);
}

TEST_F(CudaPluginTest, DescribesADeviceWithoutUsingIt) {
  sherd_device_info_v0 info = {};
  ASSERT_EQ(plugin_.Describe(1, &info, &error_), SHERD_OK);
  EXPECT_EQ(std::string(info.name), "Scripted GPU");
  EXPECT_EQ(std::string(info.bus_id), "0000:42:00.0");
  EXPECT_EQ(info.multiprocessors, 132);
  EXPECT_EQ(info.compute_major, 9);
  EXPECT_EQ(info.compute_minor, 0);
  EXPECT_EQ(info.total_bytes, 1000u);
  EXPECT_EQ(info.free_bytes, 0u);
  EXPECT_EQ(driver_.calls("cuDevicePrimaryCtxRetain"), 0);

  Allocate(1, 8);
  ASSERT_EQ(plugin_.Describe(1, &info, &error_), SHERD_OK);
  EXPECT_EQ(info.free_bytes, 100u);
}

// Every function that has to do with a device.
struct Function {
  const char* name;
  // The one of the driver that fails it.
  const char* symbol;
  std::function<sherd_code(CudaPlugin&, void* event, sherd_error_v0*)> call;
};

std::vector<Function> Functions() {
  static void* data = reinterpret_cast<void*>(uintptr_t{0x100000});
  static void* const stream = ScriptedDriver::StreamNumber(1);
  static int32_t number = 0;
  static sherd_device_memory_v0 memory = {};
  static sherd_device_handle_v0 handle = {};
  return {
      {"Allocate", "cuMemAllocFromPoolAsync",
       [](CudaPlugin& r, void*, sherd_error_v0* e) {
         void* out = nullptr;
         return r.Allocate(1, 8, stream, &out, e);
       }},
      {"Deallocate", "cuMemFreeAsync",
       [](CudaPlugin& r, void*, sherd_error_v0* e) {
         void* out = nullptr;
         const sherd_code code = r.Allocate(1, 8, stream, &out, e);
         return code != SHERD_OK ? code : r.Deallocate(1, out, 8, stream, e);
       }},
      {"Statistics", "cuMemPoolGetAttribute",
       [](CudaPlugin& r, void*, sherd_error_v0* e) {
         return r.Statistics(1, &memory, e);
       }},
      {"Trim", "cuMemPoolTrimTo",
       [](CudaPlugin& r, void*, sherd_error_v0* e) { return r.Trim(e); }},
      {"Locate", "cuPointerGetAttributes",
       [](CudaPlugin& r, void*, sherd_error_v0* e) {
         return r.Locate(data, &number, e);
       }},
      {"CreateStream", "cuStreamCreateWithPriority",
       [](CudaPlugin& r, void*, sherd_error_v0* e) {
         void* out = nullptr;
         return r.CreateStream(1, true, &out, e);
       }},
      {"DestroyStream", "cuStreamDestroy_v2",
       [](CudaPlugin& r, void*, sherd_error_v0* e) {
         return r.DestroyStream(1, stream, e);
       }},
      {"IsCapturing", "cuStreamIsCapturing",
       [](CudaPlugin& r, void*, sherd_error_v0* e) {
         return r.IsCapturing(1, stream, &number, e);
       }},
      {"RecordEvent", "cuEventRecord",
       [](CudaPlugin& r, void* event, sherd_error_v0* e) {
         return r.RecordEvent(1, event, stream, e);
       }},
      {"WaitEvent", "cuStreamWaitEvent",
       [](CudaPlugin& r, void* event, sherd_error_v0* e) {
         return r.WaitEvent(1, stream, event, e);
       }},
      {"QueryEvent", "cuEventQuery",
       [](CudaPlugin& r, void* event, sherd_error_v0* e) {
         return r.QueryEvent(event, e);
       }},
      {"CopyBytes", "cuMemcpyAsync",
       [](CudaPlugin& r, void*, sherd_error_v0* e) {
         return r.work().CopyBytes(1, stream, data, &number, 4, e);
       }},
      {"AllocateShared", "cuMemAlloc_v2",
       [](CudaPlugin& r, void*, sherd_error_v0* e) {
         void* out = nullptr;
         return r.AllocateShared(1, 8, &out, e);
       }},
      {"ExportMemory", "cuIpcGetMemHandle",
       [](CudaPlugin& r, void*, sherd_error_v0* e) {
         void* out = nullptr;
         const sherd_code code = r.Allocate(1, 8, stream, &out, e);
         return code != SHERD_OK ? code : r.ExportMemory(1, out, 8, &handle, e);
       }},
      {"ImportMemory", "cuIpcOpenMemHandle_v2",
       [](CudaPlugin& r, void*, sherd_error_v0* e) {
         void* out = nullptr;
         sherd_code code = r.Allocate(1, 8, stream, &out, e);
         if (code == SHERD_OK) code = r.ExportMemory(1, out, 8, &handle, e);
         return code != SHERD_OK ? code : r.ImportMemory(1, handle, &out, e);
       }},
      {"Reach", "cuCtxEnablePeerAccess",
       [](CudaPlugin& r, void*, sherd_error_v0* e) {
         return r.Reach(1, 0, &number, e);
       }},
  };
}

TEST_F(CudaPluginTest, LeavesTheCallersContextAsItWas) {
  void* const event = TakeEvent(1);
  for (const CUcontext callers :
       {CUcontext{}, ScriptedDriver::ContextOf(0), ScriptedDriver::ContextOf(1),
        reinterpret_cast<CUcontext>(uintptr_t{0xbad0})}) {
    std::vector<CUcontext> contexts;
    if (callers != nullptr) contexts.push_back(callers);
    for (const Function& function : Functions()) {
      SCOPED_TRACE(function.name);
      driver_.contexts = contexts;
      driver_.capture_mode = 1;
      EXPECT_EQ(function.call(plugin_, event, &error_), SHERD_OK)
          << error_.text;
      EXPECT_EQ(driver_.contexts, contexts);
      EXPECT_EQ(driver_.capture_mode, 1);
    }
  }
}

// What failed was queued before by somebody else.
TEST_F(CudaPluginTest, AnErrorThatTheCallersKernelLeftIsNamedEverywhere) {
  for (const Function& function : Functions()) {
    SCOPED_TRACE(function.name);
    ScriptedDriver driver;
    CudaPlugin plugin(driver.Opener(), nullptr);
    void* event = nullptr;
    ASSERT_EQ(plugin.TakeEvent(1, &event, &error_), SHERD_OK);
    driver.contexts = {ScriptedDriver::ContextOf(0)};
    driver.Fail(function.symbol, kCudaIllegalAddress);
    EXPECT_EQ(function.call(plugin, event, &error_), SHERD_SYSTEM);
    EXPECT_EQ(error_.native_code, kCudaIllegalAddress);
    const std::string symbol = function.symbol;
    EXPECT_TRUE(ErrorSays(symbol.substr(0, symbol.find("_v2")).c_str()))
        << error_.text;
    EXPECT_TRUE(ErrorSays("CUDA_ERROR_ILLEGAL_ADDRESS (700)")) << error_.text;
    EXPECT_TRUE(ErrorSays("queued earlier on this GPU failed")) << error_.text;
    EXPECT_TRUE(ErrorSays("restart the process")) << error_.text;
    EXPECT_EQ(driver.contexts,
              std::vector<CUcontext>{ScriptedDriver::ContextOf(0)});
    EXPECT_EQ(driver.capture_mode, 0);
  }
}

TEST_F(CudaPluginTest, AContextThatCannotBeMadeCurrentIsAnError) {
  Allocate(1, 8);
  driver_.Fail("cuCtxPushCurrent_v2", kCudaContextIsDestroyed);
  void* data = nullptr;
  EXPECT_EQ(plugin_.Allocate(1, 8, nullptr, &data, &error_), SHERD_SYSTEM);
  EXPECT_TRUE(ErrorSays("cuCtxPushCurrent")) << error_.text;
  EXPECT_TRUE(driver_.contexts.empty());
}

TEST_F(CudaPluginTest, TriesAgainToUseADeviceThatCouldNotBeUsed) {
  for (const char* symbol : {"cuDevicePrimaryCtxRetain", "cuMemPoolCreate",
                             "cuMemPoolSetAttribute", "cuDeviceGetAttribute"}) {
    SCOPED_TRACE(symbol);
    ScriptedDriver driver;
    CudaPlugin plugin(driver.Opener(), nullptr);
    driver.Fail(symbol, kCudaOutOfMemory);
    void* data = nullptr;
    EXPECT_EQ(plugin.Allocate(0, 8, nullptr, &data, &error_), SHERD_RESOURCE);
    EXPECT_TRUE(ErrorSays(symbol)) << error_.text;
    EXPECT_TRUE(driver.contexts.empty());
    driver.Fail(symbol, kCudaSuccess, 1000);
    EXPECT_EQ(plugin.Allocate(0, 8, nullptr, &data, &error_), SHERD_OK);
    EXPECT_TRUE(driver.contexts.empty());
  }
}

TEST_F(CudaPluginTest, RetainsEachContextOnce) {
  Allocate(0, 8);
  Allocate(1, 8);
  Allocate(0, 8);
  EXPECT_EQ(driver_.calls("cuDevicePrimaryCtxRetain"), 2);
  EXPECT_EQ(driver_.calls("cuMemPoolCreate"), 2);
}

TEST_F(CudaPluginTest, CurrentDeviceIsThatOfTheCallersContext) {
  int32_t device = -1;
  ASSERT_EQ(plugin_.GetCurrent(&device, &error_), SHERD_OK);
  EXPECT_EQ(device, 0);

  ASSERT_EQ(plugin_.SetCurrent(1, &error_), SHERD_OK);
  EXPECT_EQ(driver_.contexts,
            std::vector<CUcontext>{ScriptedDriver::ContextOf(1)});
  ASSERT_EQ(plugin_.GetCurrent(&device, &error_), SHERD_OK);
  EXPECT_EQ(device, 1);

  driver_.ForgetCalls();
  ASSERT_EQ(plugin_.SetCurrent(1, &error_), SHERD_OK);
  EXPECT_EQ(driver_.calls("cuCtxSetCurrent"), 0);

  // A context of device 0 that is not the primary one.
  driver_.contexts = {reinterpret_cast<CUcontext>(
      reinterpret_cast<uintptr_t>(ScriptedDriver::ContextOf(0)) + 1)};
  ASSERT_EQ(plugin_.GetCurrent(&device, &error_), SHERD_OK);
  EXPECT_EQ(device, 0);

  EXPECT_EQ(plugin_.SetCurrent(7, &error_), SHERD_INVALID_ARGUMENT);
}

TEST_F(CudaPluginTest, HotCallsAskTheDriverLittleAndAllocateNothing) {
  void* const stream = ScriptedDriver::StreamNumber(1);
  void* const event = TakeEvent(1);
  ASSERT_EQ(plugin_.SetCurrent(1, &error_), SHERD_OK);
  void* const data = Allocate(1, 8);

  driver_.ForgetCalls();
  num_allocations = 0;
  EXPECT_EQ(plugin_.RecordEvent(1, event, stream, &error_), SHERD_OK);
  EXPECT_EQ(plugin_.WaitEvent(1, stream, event, &error_), SHERD_OK);
  EXPECT_EQ(plugin_.work().CopyBytes(1, stream, data, data, 8, &error_),
            SHERD_OK);
  // The function, and which context is current.
  EXPECT_EQ(driver_.calls(), 6);
  EXPECT_EQ(driver_.calls("cuCtxGetCurrent"), 3);

  driver_.ForgetCalls();
  EXPECT_EQ(plugin_.QueryEvent(event, &error_), SHERD_OK);
  // The function, and the mode of captures there and back.
  EXPECT_EQ(driver_.calls(), 3);

  void* again = nullptr;
  driver_.ForgetCalls();
  plugin_.ReturnEvent(1, event);
  EXPECT_EQ(plugin_.TakeEvent(1, &again, &error_), SHERD_OK);
  EXPECT_EQ(driver_.calls("cuEventCreate"), 0);
  EXPECT_EQ(num_allocations, 0);
}

TEST_F(CudaPluginTest, EventsComeFromThePoolOfTheirDevice) {
  void* const first = TakeEvent(0);
  void* const other = TakeEvent(1);
  plugin_.ReturnEvent(0, first);
  plugin_.ReturnEvent(1, other);
  EXPECT_EQ(TakeEvent(0), first);
  EXPECT_EQ(TakeEvent(1), other);
  EXPECT_NE(TakeEvent(0), first);
  EXPECT_EQ(driver_.calls("cuEventCreate"), 3);
}

TEST_F(CudaPluginTest, EventsDoNotTakeTheTime) {
  unsigned flags = 0;
  driver_.on.EventCreate = [&](CUevent*, unsigned given) {
    flags = given;
    return kCudaSuccess;
  };
  TakeEvent(0);
  EXPECT_EQ(flags, kCudaEventDisableTiming);
}

TEST_F(CudaPluginTest, AnEventThatCannotBeCreatedIsAnError) {
  driver_.Fail("cuEventCreate", kCudaOutOfMemory);
  void* event = nullptr;
  EXPECT_EQ(plugin_.TakeEvent(0, &event, &error_), SHERD_RESOURCE);
  EXPECT_TRUE(ErrorSays("cuEventCreate: CUDA_ERROR_OUT_OF_MEMORY"));
}

TEST_F(CudaPluginTest, QueryTellsWhetherAnEventHasHappened) {
  void* const event = TakeEvent(0);
  EXPECT_EQ(plugin_.QueryEvent(event, &error_), SHERD_OK);
  int mode = -1;
  driver_.on.EventQuery = [&](CUevent) {
    mode = driver_.capture_mode;
    return kCudaNotReady;
  };
  EXPECT_EQ(plugin_.QueryEvent(event, &error_), SHERD_IN_PROGRESS);
  // Or else a capture of another thread would break.
  EXPECT_EQ(mode, kCudaCaptureModeRelaxed);
  EXPECT_EQ(driver_.capture_mode, 0);
  driver_.Fail("cuEventQuery", kCudaCapturedEvent);
  EXPECT_EQ(plugin_.QueryEvent(event, &error_), SHERD_UNSUPPORTED);
}

TEST_F(CudaPluginTest, QueryGivesADriverThatWantsOneTheEventsContext) {
  void* const event = TakeEvent(1);
  ASSERT_TRUE(driver_.contexts.empty());
  driver_.on.EventQuery = [&](CUevent) {
    if (driver_.contexts.empty()) return kCudaInvalidContext;
    EXPECT_EQ(driver_.contexts.back(), ScriptedDriver::ContextOf(1));
    return kCudaNotReady;
  };
  EXPECT_EQ(plugin_.QueryEvent(event, &error_), SHERD_IN_PROGRESS);
  EXPECT_TRUE(driver_.contexts.empty());
}

TEST_F(CudaPluginTest, StreamsHavePriorities) {
  std::vector<int> priorities;
  std::vector<unsigned> flags;
  driver_.on.StreamCreateWithPriority = [&](CUstream* stream, unsigned given,
                                            int priority) {
    *stream = ScriptedDriver::StreamNumber(5);
    flags.push_back(given);
    priorities.push_back(priority);
    return kCudaSuccess;
  };
  void* stream = nullptr;
  ASSERT_EQ(plugin_.CreateStream(0, false, &stream, &error_), SHERD_OK);
  ASSERT_EQ(plugin_.CreateStream(0, true, &stream, &error_), SHERD_OK);
  EXPECT_EQ(stream, ScriptedDriver::StreamNumber(5));
  EXPECT_EQ(priorities, (std::vector<int>{0, -5}));
  EXPECT_EQ(flags, std::vector<unsigned>(2, kCudaStreamNonBlocking));
}

TEST_F(CudaPluginTest, TellsWhetherAStreamIsCaptured) {
  void* const stream = ScriptedDriver::StreamNumber(1);
  int32_t capturing = -1;
  ASSERT_EQ(plugin_.IsCapturing(0, stream, &capturing, &error_), SHERD_OK);
  EXPECT_EQ(capturing, 0);
  driver_.capturing.insert(ScriptedDriver::StreamNumber(1));
  ASSERT_EQ(plugin_.IsCapturing(0, stream, &capturing, &error_), SHERD_OK);
  EXPECT_EQ(capturing, 1);
  ASSERT_EQ(plugin_.IsCapturing(0, nullptr, &capturing, &error_), SHERD_OK);
  EXPECT_EQ(capturing, 0);
  // A stream that waits for the default stream is captured: nothing may be
  // queued there.
  driver_.Fail("cuStreamIsCapturing", kCudaStreamCaptureImplicit);
  ASSERT_EQ(plugin_.IsCapturing(0, nullptr, &capturing, &error_), SHERD_OK);
  EXPECT_EQ(capturing, 1);
  EXPECT_EQ(plugin_.IsCapturing(2, nullptr, &capturing, &error_),
            SHERD_INVALID_ARGUMENT);
}

TEST_F(CudaPluginTest, ThePoolKeepsWhatIsFreed) {
  uint64_t threshold = 0;
  driver_.on.MemPoolSetAttribute = [&](CUmemoryPool, int attribute,
                                       void* value) {
    EXPECT_EQ(attribute, kCudaPoolReleaseThreshold);
    threshold = *static_cast<uint64_t*>(value);
    return kCudaSuccess;
  };
  Allocate(1, 8);
  EXPECT_EQ(threshold, UINT64_MAX);
}

TEST_F(CudaPluginTest, OutOfMemorySaysHowMuchThereIs) {
  driver_.Fail("cuMemAllocFromPoolAsync", kCudaOutOfMemory);
  void* data = nullptr;
  EXPECT_EQ(plugin_.Allocate(1, 4096, nullptr, &data, &error_), SHERD_RESOURCE);
  EXPECT_EQ(std::string(error_.text),
            "cuMemAllocFromPoolAsync: CUDA_ERROR_OUT_OF_MEMORY (2) for 4096 "
            "bytes on device 1, where 100 of 1000 are free; free memory, trim "
            "the pools, or use more devices");
}

TEST_F(CudaPluginTest, AnAbsurdAmountIsOutOfMemory) {
  void* data = nullptr;
  for (const uint64_t bytes : {UINT64_MAX, UINT64_MAX / 2}) {
    EXPECT_EQ(plugin_.Allocate(0, bytes, nullptr, &data, &error_),
              SHERD_RESOURCE);
    EXPECT_EQ(plugin_.AllocateShared(0, bytes, &data, &error_), SHERD_RESOURCE);
    EXPECT_EQ(plugin_.AllocatePinned(bytes, &data, &error_), SHERD_RESOURCE);
  }
}

TEST_F(CudaPluginTest, GivesCachedMemoryUpBeforeItRunsOut) {
  void* shared = nullptr;
  ASSERT_EQ(plugin_.AllocateShared(0, 8, &shared, &error_), SHERD_OK);
  ASSERT_EQ(plugin_.DeallocateShared(0, shared, 8, &error_), SHERD_OK);
  EXPECT_EQ(driver_.memory.size(), 1u);
  int tries = 0;
  driver_.on.MemAllocFromPoolAsync = [&](CUdeviceptr* data, size_t,
                                         CUmemoryPool, CUstream) {
    *data = 0x5000;
    return ++tries == 1 ? kCudaOutOfMemory : kCudaSuccess;
  };
  Allocate(0, 8);
  EXPECT_EQ(tries, 2);
  EXPECT_TRUE(driver_.memory.empty());
}

TEST_F(CudaPluginTest, SharedMemoryTakesWhatThePoolKeeps) {
  bool is_trimmed = false;
  driver_.on.MemPoolTrimTo = [&](CUmemoryPool, size_t keep_bytes) {
    EXPECT_EQ(keep_bytes, 0u);
    is_trimmed = true;
    return kCudaSuccess;
  };
  driver_.on.MemAlloc = [&](CUdeviceptr* data, size_t) {
    *data = 0x5000;
    return is_trimmed ? kCudaSuccess : kCudaOutOfMemory;
  };
  void* shared = nullptr;
  EXPECT_EQ(plugin_.AllocateShared(0, 8, &shared, &error_), SHERD_OK);
}

TEST_F(CudaPluginTest, OldDriversReuseNothingWithoutAnEventBetween) {
  for (const int version : {11040, 11050}) {
    SCOPED_TRACE(version);
    ScriptedDriver driver;
    driver.version = version;
    int is_allowed = 1;
    driver.on.MemPoolSetAttribute = [&](CUmemoryPool, int attribute,
                                        void* value) {
      if (attribute == kCudaPoolReuseOpportunistic) {
        is_allowed = *static_cast<int*>(value);
      }
      return kCudaSuccess;
    };
    CudaPlugin plugin(driver.Opener(), nullptr);
    void* data = nullptr;
    ASSERT_EQ(plugin.Allocate(0, 8, nullptr, &data, &error_), SHERD_OK);
    EXPECT_EQ(is_allowed, version < 11050 ? 0 : 1);
  }
}

TEST_F(CudaPluginTest, FreesInTheOrderOfTheStream) {
  void* const stream = ScriptedDriver::StreamNumber(1);
  void* const data = Allocate(0, 8, stream);
  EXPECT_EQ(plugin_.Deallocate(0, data, 8, stream, &error_), SHERD_OK);
  ASSERT_EQ(driver_.frees.size(), 1u);
  EXPECT_EQ(driver_.frees[0].second, stream);
  EXPECT_EQ(driver_.calls("cuStreamSynchronize"), 0);
}

TEST_F(CudaPluginTest, FreesAfterACaptureWhatIsNotOfTheGraph) {
  const CUstream stream = ScriptedDriver::StreamNumber(1);
  const CUstream other = ScriptedDriver::StreamNumber(2);
  void* const data = Allocate(0, 8, stream);
  driver_.capturing.insert(stream);
  EXPECT_EQ(plugin_.Deallocate(0, data, 8, stream, &error_), SHERD_OK);
  EXPECT_EQ(driver_.memory.size(), 1u);
  // What the driver refuses ends the capture.
  EXPECT_EQ(driver_.calls("cuMemFreeAsync"), 0);
  // Memory of the graph is freed within it.
  void* const graphs = Allocate(0, 8, stream);
  EXPECT_EQ(plugin_.Deallocate(0, graphs, 8, stream, &error_), SHERD_OK);
  EXPECT_EQ(driver_.calls("cuMemFreeAsync"), 1);

  // What ran on the stream before may use it still.
  Allocate(0, 8, other);
  EXPECT_EQ(driver_.calls("cuMemFreeAsync"), 1);
  driver_.capturing.erase(stream);
  Allocate(0, 8, other);
  ASSERT_FALSE(driver_.frees.empty());
  EXPECT_EQ(driver_.frees.back(),
            std::pair(reinterpret_cast<CUdeviceptr>(data), stream));
}

TEST_F(CudaPluginTest, FreesWhatWaitedForACaptureBeforeItsStreamIsDestroyed) {
  const CUstream stream = ScriptedDriver::StreamNumber(1);
  void* const data = Allocate(0, 8, stream);
  driver_.capturing.insert(stream);
  EXPECT_EQ(plugin_.Deallocate(0, data, 8, stream, &error_), SHERD_OK);
  driver_.capturing.erase(stream);
  EXPECT_EQ(plugin_.DestroyStream(0, stream, &error_), SHERD_OK);
  ASSERT_EQ(driver_.frees.size(), 1u);
  EXPECT_EQ(driver_.frees[0].second, stream);
}

TEST_F(CudaPluginTest, WaitsForWhatWasFreedBeforeItRunsOutOfMemory) {
  bool has_waited = false;
  driver_.on.StreamSynchronize = [&](CUstream stream) {
    EXPECT_EQ(stream, ScriptedDriver::StreamNumber(1));
    // Or else a capture of another thread would break.
    EXPECT_EQ(driver_.capture_mode, kCudaCaptureModeRelaxed);
    has_waited = true;
    return kCudaSuccess;
  };
  driver_.on.MemAllocFromPoolAsync = [&](CUdeviceptr* data, size_t,
                                         CUmemoryPool, CUstream) {
    *data = 0x5000;
    return has_waited ? kCudaSuccess : kCudaOutOfMemory;
  };
  Allocate(0, 8, ScriptedDriver::StreamNumber(1));
  EXPECT_TRUE(has_waited);
}

TEST_F(CudaPluginTest, AFreeThatTheDriverRefusesIsAnError) {
  EXPECT_EQ(plugin_.Deallocate(0, &error_, 8, nullptr, &error_),
            SHERD_INVALID_ARGUMENT);
  EXPECT_TRUE(ErrorSays("cuMemFreeAsync: CUDA_ERROR_INVALID_VALUE (1)"));
}

TEST_F(CudaPluginTest, FreeingAfterTheDriversEndIsFine) {
  void* const data = Allocate(0, 8);
  driver_.Fail("cuMemFreeAsync", kCudaDeinitialized);
  EXPECT_EQ(plugin_.Deallocate(0, data, 8, nullptr, &error_), SHERD_OK);
  driver_.Fail("cuCtxGetCurrent", kCudaDeinitialized);
  driver_.Fail("cuCtxPushCurrent_v2", kCudaDeinitialized);
  EXPECT_EQ(plugin_.Deallocate(0, data, 8, nullptr, &error_), SHERD_OK);
}

TEST_F(CudaPluginTest, ADeviceWithoutPoolsHasMemory) {
  driver_.has_pools = false;
  void* const stream = ScriptedDriver::StreamNumber(1);
  void* const data = Allocate(0, 8, stream);
  EXPECT_EQ(driver_.calls("cuMemAlloc_v2"), 1);
  EXPECT_EQ(driver_.calls("cuMemPoolCreate"), 0);
  sherd_device_memory_v0 memory = {};
  ASSERT_EQ(plugin_.Statistics(0, &memory, &error_), SHERD_OK);
  EXPECT_EQ(memory.live_bytes, 8u);
  EXPECT_EQ(memory.cached_bytes, 0u);

  // What the stream still does is waited for.
  EXPECT_EQ(plugin_.Deallocate(0, data, 8, stream, &error_), SHERD_OK);
  EXPECT_EQ(driver_.calls("cuStreamSynchronize"), 1);
  EXPECT_TRUE(driver_.memory.empty());
  ASSERT_EQ(plugin_.Statistics(0, &memory, &error_), SHERD_OK);
  EXPECT_EQ(memory.live_bytes, 0u);
  EXPECT_EQ(plugin_.Trim(&error_), SHERD_OK);
}

TEST_F(CudaPluginTest, ADeviceWithoutPoolsHasNoneForGraphs) {
  driver_.has_pools = false;
  const CUstream stream = ScriptedDriver::StreamNumber(1);
  driver_.capturing.insert(stream);
  void* data = nullptr;
  EXPECT_EQ(plugin_.Allocate(0, 8, stream, &data, &error_), SHERD_UNSUPPORTED);
  EXPECT_TRUE(ErrorSays("this device has no pools")) << error_.text;
  EXPECT_TRUE(driver_.memory.empty());
}

TEST_F(CudaPluginTest, CountsMemory) {
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
  EXPECT_EQ(memory.cached_bytes, 700u);
}

TEST_F(CudaPluginTest, PinnedMemoryGoesRound) {
  void* first = nullptr;
  ASSERT_EQ(plugin_.AllocatePinned(5000, &first, &error_), SHERD_OK);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 4096, 0u);
  EXPECT_EQ(driver_.pinned.at(first), 8192u);
  plugin_.DeallocatePinned(first, 5000);
  EXPECT_EQ(driver_.calls("cuMemFreeHost"), 0);

  void* second = nullptr;
  ASSERT_EQ(plugin_.AllocatePinned(8192, &second, &error_), SHERD_OK);
  EXPECT_EQ(second, first);
  void* third = nullptr;
  ASSERT_EQ(plugin_.AllocatePinned(1, &third, &error_), SHERD_OK);
  EXPECT_NE(third, first);
  plugin_.DeallocatePinned(second, 8192);
  plugin_.DeallocatePinned(third, 1);
  ASSERT_EQ(plugin_.Trim(&error_), SHERD_OK);
  EXPECT_TRUE(driver_.pinned.empty());
}

TEST_F(CudaPluginTest, PinnedMemoryIsAlignedWhateverTheDriverDoes) {
  alignas(4096) static char host[1 << 15];
  std::map<void*, size_t> blocks;
  size_t used = 512;
  driver_.on.MemHostAlloc = [&](void** data, size_t bytes, unsigned) {
    if (used + bytes > sizeof(host)) return kCudaOutOfMemory;
    *data = host + used;
    used += bytes;
    blocks[*data] = bytes;
    return kCudaSuccess;
  };
  driver_.on.MemFreeHost = [&](void* data) {
    return blocks.erase(data) == 1 ? kCudaSuccess : kCudaInvalidValue;
  };
  void* data = nullptr;
  ASSERT_EQ(plugin_.AllocatePinned(5000, &data, &error_), SHERD_OK);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4096, 0u);
  ASSERT_EQ(blocks.size(), 1u);
  const auto& [start, bytes] = *blocks.begin();
  EXPECT_LE(static_cast<char*>(data) + 5000, static_cast<char*>(start) + bytes);
  plugin_.DeallocatePinned(data, 5000);
  Allocate(0, 8);
  ASSERT_EQ(plugin_.Trim(&error_), SHERD_OK);
  EXPECT_TRUE(blocks.empty());
}

TEST_F(CudaPluginTest, PinnedMemoryNeedsNoContextOfAnotherDevice) {
  Allocate(1, 8);
  void* data = nullptr;
  ASSERT_EQ(plugin_.AllocatePinned(1, &data, &error_), SHERD_OK);
  EXPECT_EQ(driver_.calls("cuDevicePrimaryCtxRetain"), 1);
}

TEST_F(CudaPluginTest, PinnedMemoryWastesLittle) {
  void* data = nullptr;
  for (const uint64_t bytes : {100'000u, 1'000'001u, 33'000'000u}) {
    ASSERT_EQ(plugin_.AllocatePinned(bytes, &data, &error_), SHERD_OK);
    EXPECT_GE(driver_.pinned.at(data), bytes);
    EXPECT_LE(driver_.pinned.at(data), bytes + bytes / 8);
  }
}

TEST_F(CudaPluginTest, PinnedMemoryThatRunsOutGivesUpWhatItKeeps) {
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
  EXPECT_TRUE(driver_.pinned.empty());
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

TEST_F(CudaPluginTest, LocatesWithWhateverContextThereIs) {
  const auto real = driver_.on.PointerGetAttributes;
  driver_.on.PointerGetAttributes = [&](unsigned count, int* attributes,
                                        void** values, CUdeviceptr data) {
    return driver_.contexts.empty() ? kCudaInvalidContext
                                    : real(count, attributes, values, data);
  };
  int32_t device = 5;
  ASSERT_EQ(plugin_.Locate(&device, &device, &error_), SHERD_OK);
  EXPECT_EQ(device, -2);
  EXPECT_EQ(driver_.calls("cuDevicePrimaryCtxRetain"), 0);
  void* const data = Allocate(0, 100);
  ASSERT_EQ(plugin_.Locate(data, &device, &error_), SHERD_OK);
  EXPECT_EQ(device, 0);
  EXPECT_TRUE(driver_.contexts.empty());
}

TEST_F(CudaPluginTest, ReachesThePeersMemory) {
  CUcontext context = nullptr;
  CUmemAccessDesc access = {};
  driver_.on.CtxEnablePeerAccess = [&](CUcontext peer, unsigned) {
    EXPECT_EQ(driver_.contexts.back(), ScriptedDriver::ContextOf(1));
    context = peer;
    return kCudaPeerAccessAlreadyEnabled;
  };
  driver_.on.MemPoolSetAccess = [&](CUmemoryPool, const CUmemAccessDesc* given,
                                    size_t) {
    access = *given;
    return kCudaSuccess;
  };
  int32_t reachable = -1;
  ASSERT_EQ(plugin_.Reach(1, 0, &reachable, &error_), SHERD_OK);
  EXPECT_EQ(reachable, 1);
  EXPECT_EQ(context, ScriptedDriver::ContextOf(0));
  EXPECT_EQ(access.location.id, 1);
  EXPECT_EQ(access.flags, kCudaAccessReadWrite);

  driver_.can_access_peer = false;
  ASSERT_EQ(plugin_.Reach(0, 1, &reachable, &error_), SHERD_OK);
  EXPECT_EQ(reachable, 0);
  ASSERT_EQ(plugin_.Reach(1, 1, &reachable, &error_), SHERD_OK);
  EXPECT_EQ(reachable, 1);
  EXPECT_EQ(plugin_.Reach(0, 9, &reachable, &error_), SHERD_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace sherd::internal
