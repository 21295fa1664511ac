#include "sherd/backends/cuda/cuda_plugin.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sherd/backends/cuda/cuda_error.h"
#include "sherd/backends/cuda/cuda_scope.h"
#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

CUdeviceptr ToAddress(const void* data) {
  return reinterpret_cast<uintptr_t>(data);
}

CUstream ToStream(void* stream) { return static_cast<CUstream>(stream); }

}  // namespace

const char* CudaPlugin::LibraryVersion() {
  sherd_error_v0 error = {};
  error.struct_size = sizeof(error);
  devices_.Start(&error);
  return devices_.version_text().empty() ? nullptr
                                         : devices_.version_text().c_str();
}

sherd_code CudaPlugin::Count(int32_t* devices, sherd_error_v0* error) {
  if (const sherd_code code = devices_.Start(error); code != SHERD_OK)
    return code;
  *devices = static_cast<int32_t>(devices_.all().size());
  return SHERD_OK;
}

sherd_code CudaPlugin::Describe(int32_t index, sherd_device_info_v0* info,
                                sherd_error_v0* error) {
  CudaDevice* device = nullptr;
  if (const sherd_code code = devices_.Find(index, &device, error);
      code != SHERD_OK) {
    return code;
  }
  const CUdevice handle = device->handle;
  const auto attribute = [&](int number, int32_t* value) {
    return cuda_.DeviceGetAttribute(value, number, handle);
  };
  size_t total = 0;
  const struct {
    const char* function;
    CUresult result;
  } calls[] = {
      {"cuDeviceGetName",
       cuda_.DeviceGetName(info->name, sizeof(info->name), handle)},
      {"cuDeviceGetPCIBusId",
       cuda_.DeviceGetPCIBusId(info->bus_id, sizeof(info->bus_id), handle)},
      {"cuDeviceTotalMem", cuda_.DeviceTotalMem(&total, handle)},
      {"cuDeviceGetAttribute",
       attribute(kCudaMultiprocessorCount, &info->multiprocessors)},
      {"cuDeviceGetAttribute",
       attribute(kCudaComputeCapabilityMajor, &info->compute_major)},
      {"cuDeviceGetAttribute",
       attribute(kCudaComputeCapabilityMinor, &info->compute_minor)},
  };
  for (const auto& call : calls) {
    if (call.result != kCudaSuccess) {
      return FailCuda(error, cuda_, call.function, call.result);
    }
  }
  info->total_bytes = total;
  info->free_bytes = 0;
  // The free memory can be queried in a context only, and a context takes
  // memory.
  const CUcontext context = device->context.load(std::memory_order_acquire);
  if (context == nullptr) return SHERD_OK;
  const ContextScope scope(cuda_, context);
  size_t free_bytes = 0;
  if (cuda_.MemGetInfo(&free_bytes, &total) == kCudaSuccess) {
    info->free_bytes = free_bytes;
  }
  return SHERD_OK;
}

sherd_code CudaPlugin::GetCurrent(int32_t* device, sherd_error_v0* error) {
  if (const sherd_code code = devices_.Start(error); code != SHERD_OK)
    return code;
  *device = 0;
  CUcontext current = nullptr;
  if (const CUresult result = cuda_.CtxGetCurrent(&current);
      result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuCtxGetCurrent", result);
  }
  // As the runtime API has it.
  if (current == nullptr) return SHERD_OK;
  for (const auto& known : devices_.all()) {
    if (known->context.load(std::memory_order_relaxed) == current) {
      *device = known->index;
      return SHERD_OK;
    }
  }
  CUdevice handle = 0;
  if (const CUresult result = cuda_.CtxGetDevice(&handle);
      result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuCtxGetDevice", result);
  }
  if (const CudaDevice* const known = devices_.WithHandle(handle)) {
    *device = known->index;
  }
  return SHERD_OK;
}

sherd_code CudaPlugin::SetCurrent(int32_t index, sherd_error_v0* error) {
  CudaDevice* device = nullptr;
  if (const sherd_code code = devices_.Use(index, &device, error);
      code != SHERD_OK) {
    return code;
  }
  const CUcontext context = device->context.load(std::memory_order_relaxed);
  CUcontext current = nullptr;
  if (cuda_.CtxGetCurrent(&current) == kCudaSuccess && current == context) {
    return SHERD_OK;
  }
  if (const CUresult result = cuda_.CtxSetCurrent(context);
      result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuCtxSetCurrent", result);
  }
  return SHERD_OK;
}

sherd_code CudaPlugin::Allocate(int32_t index, uint64_t bytes, void* stream,
                                void** data, sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice& device) {
    return device.memory.Allocate(bytes, ToStream(stream), data, error);
  });
}

sherd_code CudaPlugin::Deallocate(int32_t index, void* data, uint64_t bytes,
                                  void* stream, sherd_error_v0* error) {
  const sherd_code code = devices_.With(index, error, [&](CudaDevice& device) {
    return device.memory.Free(data, bytes, ToStream(stream), error);
  });
  return code != SHERD_OK && error->native_code == kCudaDeinitialized ? SHERD_OK
                                                                      : code;
}

sherd_code CudaPlugin::AllocatePinned(uint64_t bytes, void** data,
                                      sherd_error_v0* error) {
  // Any context will do, and an existing one costs nothing: this avoids a
  // context of every rank on the first device.
  int32_t device = 0;
  if (const sherd_code code = GetCurrent(&device, error); code != SHERD_OK) {
    return code;
  }
  if (devices_.all()[device]->context.load() == nullptr) {
    const CudaDevice* const used = devices_.AnyUsed();
    if (used != nullptr) device = used->index;
  }
  return devices_.With(device, error, [&](CudaDevice&) {
    return pinned_.Allocate(bytes, data, error);
  });
}

sherd_code CudaPlugin::DeallocatePinned(void* data, uint64_t bytes) {
  pinned_.Free(data, bytes);
  return SHERD_OK;
}

sherd_code CudaPlugin::Statistics(int32_t index, sherd_device_memory_v0* memory,
                                  sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice& device) {
    return device.memory.GetStatistics(&memory->live_bytes,
                                       &memory->cached_bytes, error);
  });
}

sherd_code CudaPlugin::Trim(sherd_error_v0* error) {
  if (const sherd_code code = devices_.Start(error); code != SHERD_OK)
    return code;
  for (const auto& device : devices_.all()) {
    if (device->context.load(std::memory_order_acquire) == nullptr) continue;
    const sherd_code code =
        devices_.With(device->index, error, [&](CudaDevice& device) {
          work_.ReclaimTables();
          pinned_.Trim();
          return device.memory.Trim(error);
        });
    if (code != SHERD_OK) return code;
  }
  return SHERD_OK;
}

sherd_code CudaPlugin::Locate(const void* data, int32_t* device,
                              sherd_error_v0* error) {
  if (const sherd_code code = devices_.Start(error); code != SHERD_OK)
    return code;
  *device = -2;
  int type = 0;
  int ordinal = -1;
  int attributes[] = {kCudaPointerMemoryType, kCudaPointerDeviceOrdinal};
  void* values[] = {&type, &ordinal};
  const auto ask = [&] {
    const RelaxedCaptureScope relaxed(cuda_);
    return cuda_.PointerGetAttributes(2, attributes, values, ToAddress(data));
  };
  CUresult result = ask();
  if (result == kCudaInvalidContext) {
    // No context is current, and any that there is will do.
    const CudaDevice* const used = devices_.AnyUsed();
    if (used == nullptr) return SHERD_OK;
    const ContextScope scope(cuda_, used->context.load());
    result = ask();
  }
  // The driver does not know such an address.
  if (result == kCudaInvalidValue || result == kCudaInvalidContext) {
    return SHERD_OK;
  }
  if (result != kCudaSuccess) {
    return FailCuda(error, cuda_, "cuPointerGetAttributes", result);
  }
  if (type == kCudaMemoryTypeHost) *device = -1;
  if (type == kCudaMemoryTypeDevice) {
    if (const CudaDevice* const known = devices_.WithHandle(ordinal)) {
      *device = known->index;
    }
  }
  return SHERD_OK;
}

sherd_code CudaPlugin::CreateStream(int32_t index, bool high_priority,
                                    void** stream, sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice&) {
    const RelaxedCaptureScope relaxed(cuda_);
    int least = 0;
    int greatest = 0;
    if (const CUresult result =
            cuda_.CtxGetStreamPriorityRange(&least, &greatest);
        result != kCudaSuccess) {
      return FailCuda(error, cuda_, "cuCtxGetStreamPriorityRange", result);
    }
    CUstream created = nullptr;
    if (const CUresult result = cuda_.StreamCreateWithPriority(
            &created, kCudaStreamNonBlocking, high_priority ? greatest : least);
        result != kCudaSuccess) {
      return FailCuda(error, cuda_, "cuStreamCreateWithPriority", result);
    }
    *stream = created;
    return sherd_code{SHERD_OK};
  });
}

sherd_code CudaPlugin::DestroyStream(int32_t index, void* stream,
                                     sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice& device) {
    device.memory.Leave(ToStream(stream));
    const RelaxedCaptureScope relaxed(cuda_);
    const CUresult result = cuda_.StreamDestroy(ToStream(stream));
    if (result == kCudaSuccess || result == kCudaDeinitialized) {
      return sherd_code{SHERD_OK};
    }
    return FailCuda(error, cuda_, "cuStreamDestroy", result);
  });
}

sherd_code CudaPlugin::IsCapturing(int32_t index, void* stream,
                                   int32_t* capturing, sherd_error_v0* error) {
  *capturing = 0;
  return devices_.With(index, error, [&](CudaDevice&) {
    bool is_captured = false;
    if (const CUresult result =
            GetCapturing(cuda_, ToStream(stream), &is_captured);
        result != kCudaSuccess) {
      return FailCuda(error, cuda_, "cuStreamIsCapturing", result);
    }
    *capturing = is_captured;
    return sherd_code{SHERD_OK};
  });
}

sherd_code CudaPlugin::TakeEvent(int32_t index, void** event,
                                 sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice& device) {
    PooledEvent* taken = nullptr;
    const sherd_code code = device.events.Take(
        device.context.load(std::memory_order_relaxed), &taken, error);
    *event = taken;
    return code;
  });
}

void CudaPlugin::ReturnEvent(int32_t index, void* event) {
  devices_.all()[index]->events.Return(static_cast<PooledEvent*>(event));
}

sherd_code CudaPlugin::RecordEvent(int32_t index, void* event, void* stream,
                                   sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice&) {
    const CUresult result = cuda_.EventRecord(
        static_cast<PooledEvent*>(event)->event, ToStream(stream));
    if (result == kCudaSuccess) return sherd_code{SHERD_OK};
    return FailCuda(error, cuda_, "cuEventRecord", result);
  });
}

sherd_code CudaPlugin::WaitEvent(int32_t index, void* stream, void* event,
                                 sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice&) {
    const CUresult result = cuda_.StreamWaitEvent(
        ToStream(stream), static_cast<PooledEvent*>(event)->event, 0);
    if (result == kCudaSuccess) return sherd_code{SHERD_OK};
    return FailCuda(error, cuda_, "cuStreamWaitEvent", result);
  });
}

sherd_code CudaPlugin::QueryEvent(void* event, sherd_error_v0* error) {
  const PooledEvent& pooled = *static_cast<PooledEvent*>(event);
  // Without: cuEventQuery takes the context from the event.
  const RelaxedCaptureScope relaxed(cuda_);
  CUresult result = cuda_.EventQuery(pooled.event);
  // Its manual does not mention that it may need one.
  if (result == kCudaInvalidContext) {
    const ContextScope scope(cuda_, pooled.context);
    result = cuda_.EventQuery(pooled.event);
  }
  if (result == kCudaSuccess) return SHERD_OK;
  if (result == kCudaNotReady) return SHERD_IN_PROGRESS;
  return FailCuda(error, cuda_, "cuEventQuery", result);
}

sherd_code CudaPlugin::AllocateShared(int32_t index, uint64_t bytes,
                                      void** data, sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice& device) {
    return device.memory.AllocateShared(bytes, data, error);
  });
}

sherd_code CudaPlugin::DeallocateShared(int32_t index, void* data,
                                        uint64_t bytes, sherd_error_v0* error) {
  CudaDevice* device = nullptr;
  const sherd_code code = devices_.Find(index, &device, error);
  if (code == SHERD_OK) device->memory.FreeShared(data, bytes);
  return code;
}

sherd_code CudaPlugin::ExportMemory(int32_t index, const void* data,
                                    uint64_t bytes,
                                    sherd_device_handle_v0* handle,
                                    sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice&) {
    return ipc_.Export(data, bytes, handle, error);
  });
}

sherd_code CudaPlugin::ImportMemory(int32_t index,
                                    const sherd_device_handle_v0& handle,
                                    void** data, sherd_error_v0* error) {
  return devices_.With(index, error, [&](CudaDevice&) {
    return ipc_.Import(handle, data, error);
  });
}

void CudaPlugin::CloseMemory(int32_t index, void* data) {
  sherd_error_v0 error = {};
  error.struct_size = sizeof(error);
  devices_.With(index, &error, [&](CudaDevice&) {
    ipc_.Close(data);
    return sherd_code{SHERD_OK};
  });
}

sherd_code CudaPlugin::Reach(int32_t index, int32_t owner, int32_t* reachable,
                             sherd_error_v0* error) {
  CudaDevice* peer = nullptr;
  if (const sherd_code code = devices_.Use(owner, &peer, error);
      code != SHERD_OK) {
    return code;
  }
  return devices_.With(index, error, [&](CudaDevice& device) {
    *reachable = 1;
    if (&device == peer) return sherd_code{SHERD_OK};
    const RelaxedCaptureScope relaxed(cuda_);
    if (const CUresult result =
            cuda_.DeviceCanAccessPeer(reachable, device.handle, peer->handle);
        result != kCudaSuccess) {
      return FailCuda(error, cuda_, "cuDeviceCanAccessPeer", result);
    }
    if (*reachable == 0) return sherd_code{SHERD_OK};
    const CUresult result = cuda_.CtxEnablePeerAccess(
        peer->context.load(std::memory_order_relaxed), 0);
    if (result != kCudaSuccess && result != kCudaPeerAccessAlreadyEnabled) {
      return FailCuda(error, cuda_, "cuCtxEnablePeerAccess", result);
    }
    return peer->memory.LetAccess(device.handle, error);
  });
}

}  // namespace sherd::internal
