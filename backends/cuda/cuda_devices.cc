#include "sherd/backends/cuda/cuda_devices.h"

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "sherd/backends/plugin.h"

namespace sherd::internal {

using plugin::Fail;

CudaDevices::CudaDevices(Opener open, const void* image)
    : open_(std::move(open)), image_(image) {}

sherd_code CudaDevices::StartOnce(sherd_error_v0* error) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (start_code_ == SHERD_IN_PROGRESS) {
    start_error_.struct_size = sizeof(start_error_);
    start_error_.peer = -1;
    int count = 0;
    start_code_ = open_(&library_, &start_error_);
    if (start_code_ == SHERD_OK) {
      version_text_ = "driver " + CudaVersionText(library_.version) + " from " +
                      library_.path;
      start_code_ = StartCuda(&library_, &count, &start_error_);
    }
    if (start_code_ == SHERD_OK) {
      start_code_ = ListDevices(count, &start_error_);
    }
    if (start_code_ == SHERD_OK) {
      is_started_.store(true, std::memory_order_release);
    }
  }
  if (start_code_ == SHERD_OK) return SHERD_OK;
  error->native_code = start_error_.native_code;
  return Fail(error, start_code_, -1, start_error_.text);
}

sherd_code CudaDevices::ListDevices(int count, sherd_error_v0* error) {
  all_.clear();
  for (int i = 0; i < count; ++i) {
    auto device = std::make_unique<CudaDevice>(cuda(), i, image_);
    if (const CUresult result = cuda().DeviceGet(&device->handle, i);
        result != kCudaSuccess) {
      FailCuda(error, cuda(), "cuDeviceGet", result);
      return SHERD_SYSTEM;
    }
    all_.push_back(std::move(device));
  }
  return SHERD_OK;
}

CudaDevice* CudaDevices::AnyUsed() const {
  for (const auto& device : all_) {
    if (device->context.load(std::memory_order_acquire) != nullptr) {
      return device.get();
    }
  }
  return nullptr;
}

CudaDevice* CudaDevices::WithHandle(CUdevice handle) const {
  for (const auto& device : all_) {
    if (device->handle == handle) return device.get();
  }
  return nullptr;
}

sherd_code CudaDevices::Find(int32_t index, CudaDevice** device,
                             sherd_error_v0* error) {
  if (const sherd_code code = Start(error); code != SHERD_OK) return code;
  if (index >= 0 && static_cast<size_t>(index) < all_.size()) {
    *device = all_[index].get();
    return SHERD_OK;
  }
  char text[128];
  std::snprintf(text, sizeof(text),
                "there is no CUDA device %d: this process sees %zu, numbered "
                "from 0 (CUDA_VISIBLE_DEVICES)",
                index, all_.size());
  return Fail(error, SHERD_INVALID_ARGUMENT, -1, text);
}

sherd_code CudaDevices::Use(int32_t index, CudaDevice** device,
                            sherd_error_v0* error) {
  if (const sherd_code code = Find(index, device, error); code != SHERD_OK) {
    return code;
  }
  if ((*device)->context.load(std::memory_order_acquire) != nullptr) {
    return SHERD_OK;
  }
  return StartDevice(**device, error);
}

sherd_code CudaDevices::StartDevice(CudaDevice& device, sherd_error_v0* error) {
  std::lock_guard<std::mutex> lock(device.start_mutex);
  if (device.context.load(std::memory_order_acquire) != nullptr) {
    return SHERD_OK;
  }
  const RelaxedCaptureScope relaxed(cuda());
  if (device.retained == nullptr) {
    if (const CUresult result =
            cuda().DevicePrimaryCtxRetain(&device.retained, device.handle);
        result != kCudaSuccess) {
      device.retained = nullptr;
      return FailCuda(error, cuda(), "cuDevicePrimaryCtxRetain", result);
    }
  }
  const ContextScope scope(cuda(), device.retained);
  if (scope.result() != kCudaSuccess) {
    return FailCuda(error, cuda(), "cuCtxPushCurrent", scope.result());
  }
  if (const CUresult result = cuda().DeviceGetAttribute(
          &device.multiprocessors, kCudaMultiprocessorCount, device.handle);
      result != kCudaSuccess) {
    return FailCuda(error, cuda(), "cuDeviceGetAttribute", result);
  }
  int uses_host_pages = 0;
  // Drivers without the attribute do not support it.
  device.uses_host_pages =
      cuda().DeviceGetAttribute(&uses_host_pages, kCudaUsesHostPageTables,
                                device.handle) == kCudaSuccess &&
      uses_host_pages != 0;
  if (const sherd_code code = device.memory.Start(device.handle, error);
      code != SHERD_OK) {
    return code;
  }
  // Before anything of ours runs there.
  device.kernels.LoadAll();
  num_used_.fetch_add(1);
  device.context.store(device.retained, std::memory_order_release);
  return SHERD_OK;
}

}  // namespace sherd::internal
