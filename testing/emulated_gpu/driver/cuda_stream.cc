#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/cuda/kernel_params.h"
#include "sherd/testing/emulated_gpu/driver/driver.h"
#include "sherd/testing/emulated_gpu/driver/kernel_launch.h"
#include "sherd/testing/emulated_gpu/graph_api.h"
#include "sherd/testing/emulated_gpu/memory/device_memory.h"

// Streams, events, and what is queued: copies, fills and kernels.

namespace sherd::testing {
namespace {

using internal::CudaFunctions;
using internal::CUfunction;
using internal::CUmodule;
using internal::kCudaCapturedEvent;
using internal::kCudaInvalidHandle;
using internal::kCudaInvalidValue;
using internal::kCudaNotFound;
using internal::kCudaNotReady;
using internal::kCudaStreamCaptureUnsupported;

constexpr int kLastFlag = 1;

// The driver, locked, and a stream that the program named.
struct OnStream {
  explicit OnStream(CUstream handle)
      : driver(Driver::Get()),
        lock(driver.mutex),
        result(driver.FindUsableStream(handle, &stream)) {}

  Driver& driver;
  std::unique_lock<std::mutex> lock;
  StreamRef stream;
  const int result;
};

// Host memory that no function of the driver gave out.
bool IsPageable(uint64_t address) {
  MemoryTable& memory = Driver::Get().memory();
  return !memory.space().Contains(address) && memory.Find(address) == nullptr;
}

int CreateStream(CUstream* stream, unsigned flags) {
  if (stream == nullptr || flags > kLastFlag) return kCudaInvalidValue;
  Driver& driver = Driver::Get();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  const StreamRef made = driver.NewStream(
      *driver.CurrentDevice(), (flags & internal::kCudaStreamNonBlocking) == 0);
  *stream = static_cast<CUstream>(driver.streams.Add(made));
  return 0;
}

// Copies; what is pageable is read before it returns, or written.
int Copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream,
         bool wait) {
  OnStream on(stream);
  if (on.result != 0) return on.result;
  if (bytes == 0) return 0;
  StreamTask task;
  task.name = absl::StrCat(wait ? "cuMemcpy of " : "cuMemcpyAsync of ", bytes,
                           " bytes");
  task.is_copy = true;
  const bool is_captured = on.stream->capture != nullptr;
  const void* from = HostView(reinterpret_cast<const void*>(src));
  std::shared_ptr<std::vector<char>> staged;
  if (!IsPageable(src)) {
    task.accesses.push_back(Reads(reinterpret_cast<const void*>(src), bytes));
  } else if (!is_captured) {
    const auto* const first = static_cast<const char*>(from);
    staged = std::make_shared<std::vector<char>>(first, first + bytes);
    from = staged->data();
  }
  const bool is_to_pageable = IsPageable(dst);
  if (!is_to_pageable) {
    task.accesses.push_back(Writes(reinterpret_cast<const void*>(dst), bytes));
  }
  void* const to = HostView(reinterpret_cast<const void*>(dst));
  task.run = [to, from, bytes, staged] {
    std::memmove(to, from, bytes);
    return 0;
  };
  const int result = on.driver.Queue(*on.stream, std::move(task), nullptr);
  if (result != 0 || is_captured || !(wait || is_to_pageable)) return result;
  on.driver.WaitOnHost(on.lock, {on.stream->tail()}, on.stream->clock);
  return on.driver.devices[on.stream->device]->broken;
}

template <typename Element>
int Fill(const char* function, CUdeviceptr dst, Element value, size_t count,
         CUstream stream) {
  const GpuCall call(function, [&] {
    return absl::StrCat(AddressText(dst), ", ", uint64_t{value}, ", ", count,
                        ", ", AddressText(stream));
  });
  return Enter(call, Needs::kContext, [&]() -> int {
    if (dst % sizeof(Element) != 0) return kCudaInvalidValue;
    const OnStream on(stream);
    if (on.result != 0) return on.result;
    if (count == 0) return 0;
    StreamTask task;
    task.name = absl::StrCat(function, " of ", count, " elements");
    task.accesses = {
        Writes(reinterpret_cast<const void*>(dst), count * sizeof(Element))};
    task.run = [dst, value, count] {
      auto* const first =
          static_cast<Element*>(HostView(reinterpret_cast<const void*>(dst)));
      std::fill(first, first + count, value);
      return 0;
    };
    return on.driver.Queue(*on.stream, std::move(task), nullptr);
  });
}

// A kernel of a module of one device.
struct Kernel {
  int device;
  std::string name;
};
HandleTable<Kernel>& Kernels() {
  static auto* const kernels = new HandleTable<Kernel>;
  return *kernels;
}
struct Module {
  int device;
};
HandleTable<Module>& Modules() {
  static auto* const modules = new HandleTable<Module>;
  return *modules;
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return Enter("cuStreamCreate", Needs::kContext,
               [&] { return CreateStream(stream, flags); });
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags,
                                    int priority) {
  const GpuCall call("cuStreamCreateWithPriority", [&] {
    return absl::StrCat("flags ", flags, ", priority ", priority);
  });
  return Enter(call, Needs::kContext,
               [&] { return CreateStream(stream, flags); });
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  return Enter("cuStreamDestroy", Needs::kInit, [&]() -> int {
    const OnStream on(stream);
    // That of a broken device goes, too.
    if (on.stream == nullptr) return on.result;
    if (reinterpret_cast<uintptr_t>(stream) <= 2) return kCudaInvalidHandle;
    on.driver.DestroyStream(stream);
    return on.result;
  });
}

CUresult cuStreamSynchronize(CUstream stream) {
  const GpuCall call("cuStreamSynchronize",
                     [&] { return AddressText(stream); });
  return Enter(call, Needs::kInit, [&]() -> int {
    OnStream on(stream);
    if (on.result != 0) return on.result;
    if (on.stream->capture != nullptr) {
      on.stream->capture->is_valid = false;
      return kCudaStreamCaptureUnsupported;
    }
    Device& device = *on.driver.devices[on.stream->device];
    on.driver.WaitOnHost(on.lock, {on.stream->tail()}, on.stream->clock);
    ReleaseUnused(device);
    return device.broken;
  });
}

CUresult cuStreamQuery(CUstream stream) {
  return Enter("cuStreamQuery", Needs::kInit, [&]() -> int {
    const OnStream on(stream);
    if (on.result != 0) return on.result;
    if (on.stream->capture != nullptr) {
      on.stream->capture->is_valid = false;
      return kCudaStreamCaptureUnsupported;
    }
    if (!on.stream->worker->HasRun(on.stream->queued)) return kCudaNotReady;
    on.driver.JoinHost(on.stream->clock, /*for_all=*/false);
    return on.driver.devices[on.stream->device]->broken;
  });
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  return Enter("cuStreamWaitEvent", Needs::kInit, [&]() -> int {
    const OnStream on(stream);
    if (on.result != 0) return on.result;
    EventRef found;
    if (const int result = on.driver.FindEvent(event, &found); result != 0) {
      return result;
    }
    return on.driver.WaitEvent(*on.stream, *found);
  });
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  const GpuCall call("cuEventCreate",
                     [&] { return absl::StrCat("flags ", flags); });
  return Enter(call, Needs::kContext, [&] {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    auto made = std::make_shared<Event>();
    made->device = driver.CurrentDevice()->number;
    *event = static_cast<CUevent>(driver.events.Add(made));
    return 0;
  });
}

CUresult cuEventDestroy_v2(CUevent event) {
  return Enter("cuEventDestroy", Needs::kInit, [&] {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    EventRef found;
    const int result = driver.FindEvent(event, &found);
    if (result == 0) driver.events.Remove(event);
    return result;
  });
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return Enter("cuEventRecord", Needs::kInit, [&]() -> int {
    const OnStream on(stream);
    if (on.result != 0) return on.result;
    EventRef found;
    if (const int result = on.driver.FindEvent(event, &found); result != 0) {
      return result;
    }
    return on.driver.RecordEvent(*found, *on.stream);
  });
}

CUresult cuEventQuery(CUevent event) {
  return Enter("cuEventQuery", Needs::kInit, [&]() -> int {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    EventRef found;
    if (const int result = driver.FindEvent(event, &found); result != 0) {
      return result;
    }
    if (const int result = driver.CheckUnsafeCall(); result != 0) return result;
    if (found->capture != nullptr) {
      found->capture->is_valid = false;
      return kCudaCapturedEvent;
    }
    if (!found->is_recorded) return 0;
    if (const int broken = driver.devices[found->device]->broken) return broken;
    if (!found->place.first->HasRun(found->place.second)) return kCudaNotReady;
    driver.JoinHost(found->clock,
                    found->recorder == std::this_thread::get_id());
    return driver.devices[found->device]->broken;
  });
}

CUresult cuEventSynchronize(CUevent event) {
  return Enter("cuEventSynchronize", Needs::kInit, [&]() -> int {
    Driver& driver = Driver::Get();
    std::unique_lock<std::mutex> lock(driver.mutex);
    EventRef found;
    if (const int result = driver.FindEvent(event, &found); result != 0) {
      return result;
    }
    if (const int result = driver.CheckUnsafeCall(); result != 0) return result;
    if (found->capture != nullptr) {
      found->capture->is_valid = false;
      return kCudaCapturedEvent;
    }
    if (!found->is_recorded) return 0;
    driver.WaitOnHost(lock, {found->place}, found->clock);
    return driver.devices[found->device]->broken;
  });
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                       CUstream stream) {
  const GpuCall call("cuMemcpyAsync", [&] {
    return absl::StrCat(AddressText(dst), ", ", AddressText(src), ", ", bytes,
                        ", ", AddressText(stream));
  });
  return Enter(call, Needs::kContext,
               [&] { return Copy(dst, src, bytes, stream, /*wait=*/false); });
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context,
                           CUdeviceptr src, CUcontext src_context, size_t bytes,
                           CUstream stream) {
  const GpuCall call("cuMemcpyPeerAsync", [&] {
    return absl::StrCat(AddressText(dst), " in ", AddressText(dst_context),
                        ", ", AddressText(src), " in ",
                        AddressText(src_context), ", ", bytes, ", ",
                        AddressText(stream));
  });
  return Enter(call, Needs::kContext,
               [&] { return Copy(dst, src, bytes, stream, /*wait=*/false); });
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  return Enter("cuMemcpy", Needs::kContext,
               [&] { return Copy(dst, src, bytes, nullptr, /*wait=*/true); });
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count,
                         CUstream stream) {
  return Fill("cuMemsetD8Async", dst, value, count, stream);
}

CUresult cuMemsetD16Async(CUdeviceptr dst,
                          unsigned short value,  // NOLINT(runtime/int)
                          size_t count, CUstream stream) {
  return Fill("cuMemsetD16Async", dst, value, count, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t count,
                          CUstream stream) {
  return Fill("cuMemsetD32Async", dst, value, count, stream);
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return Enter("cuModuleLoadData", Needs::kContext, [&]() -> int {
    if (module == nullptr || image == nullptr) return kCudaInvalidValue;
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    if (const int result = driver.CheckUnsafeCall(); result != 0) return result;
    const int device = driver.CurrentDevice()->number;
    *module = static_cast<CUmodule>(
        Modules().Add(std::make_shared<Module>(Module{device})));
    return 0;
  });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module,
                             const char* name) {
  return Enter("cuModuleGetFunction", Needs::kContext, [&]() -> int {
    const std::lock_guard<std::mutex> lock(Driver::Get().mutex);
    const auto found = Modules().Find(module);
    if (found == nullptr) return kCudaInvalidHandle;
    if (!IsKernel(name)) return kCudaNotFound;
    *function = static_cast<CUfunction>(
        Kernels().Add(std::make_shared<Kernel>(Kernel{found->device, name})));
    return 0;
  });
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                        unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** parameters, void**) {
  const GpuCall call("cuLaunchKernel", [&] {
    const std::lock_guard<std::mutex> lock(Driver::Get().mutex);
    const auto kernel = Kernels().Find(function);
    return absl::StrCat(kernel == nullptr ? "no kernel" : kernel->name,
                        ", grid ", grid_x, " ", grid_y, " ", grid_z, ", block ",
                        block_x, " ", block_y, " ", block_z, ", shared ",
                        shared_bytes, ", ", AddressText(stream));
  });
  return Enter(call, Needs::kContext, [&]() -> int {
    const OnStream on(stream);
    if (on.result != 0) return on.result;
    const auto kernel = Kernels().Find(function);
    if (kernel == nullptr || kernel->device != on.stream->device ||
        on.driver.CurrentDevice()->number != on.stream->device) {
      return kCudaInvalidHandle;
    }
    if (grid_x == 0 || grid_y != 1 || grid_z != 1 ||
        block_x != internal::kThreads || block_y != 1 || block_z != 1 ||
        parameters == nullptr) {
      return kCudaInvalidValue;
    }
    return on.driver.Queue(
        *on.stream, LaunchOf(kernel->name, parameters[0], grid_x), nullptr);
  });
}

}  // extern "C"

#define SHERD_CHECK(function, table, member) \
  static_assert(std::is_same_v<decltype(&function), decltype(table::member)>)
SHERD_CHECK(cuStreamCreate, TestCudaFunctions, StreamCreate);
SHERD_CHECK(cuStreamCreateWithPriority, CudaFunctions,
            StreamCreateWithPriority);
SHERD_CHECK(cuStreamDestroy_v2, CudaFunctions, StreamDestroy);
SHERD_CHECK(cuStreamSynchronize, CudaFunctions, StreamSynchronize);
SHERD_CHECK(cuStreamQuery, TestCudaFunctions, StreamQuery);
SHERD_CHECK(cuStreamWaitEvent, CudaFunctions, StreamWaitEvent);
SHERD_CHECK(cuEventCreate, CudaFunctions, EventCreate);
SHERD_CHECK(cuEventDestroy_v2, CudaFunctions, EventDestroy);
SHERD_CHECK(cuEventRecord, CudaFunctions, EventRecord);
SHERD_CHECK(cuEventQuery, CudaFunctions, EventQuery);
SHERD_CHECK(cuEventSynchronize, TestCudaFunctions, EventSynchronize);
SHERD_CHECK(cuMemcpyAsync, CudaFunctions, MemcpyAsync);
SHERD_CHECK(cuMemcpyPeerAsync, CudaFunctions, MemcpyPeerAsync);
SHERD_CHECK(cuMemcpy, TestCudaFunctions, Memcpy);
SHERD_CHECK(cuMemsetD8Async, CudaFunctions, MemsetD8Async);
SHERD_CHECK(cuMemsetD16Async, CudaFunctions, MemsetD16Async);
SHERD_CHECK(cuMemsetD32Async, CudaFunctions, MemsetD32Async);
SHERD_CHECK(cuModuleLoadData, CudaFunctions, ModuleLoadData);
SHERD_CHECK(cuModuleGetFunction, CudaFunctions, ModuleGetFunction);
SHERD_CHECK(cuLaunchKernel, CudaFunctions, LaunchKernel);
#undef SHERD_CHECK

}  // namespace sherd::testing
