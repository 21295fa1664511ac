// The device plugin: its table.

#include <cstdint>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/cuda_driver.h"
#include "sherd/backends/cuda/cuda_plugin.h"
#include "sherd/backends/cuda/kernel_image.h"
#include "sherd/backends/cuda/nvtx_ranges.h"
#include "sherd/backends/device_abi.h"
#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;
using plugin::Guard;

// As in core/tensor/device.h.
constexpr int32_t kCudaDeviceType = 1;

// Asks the host for the library that the user wants, if any.
sherd_code OpenConfigured(CudaLibrary* library, sherd_error_v0* error) {
  char setting[4096] = "";
  const sherd_code code =
      plugin::Host().setting("cuda_library", setting, sizeof(setting));
  if (code == SHERD_RESOURCE) {
    return Fail(error, SHERD_SYSTEM, -1,
                "the path in SHERD_CUDA_LIBRARY is too long");
  }
  if (code != SHERD_OK) setting[0] = '\0';
  return OpenCudaLibrary(setting, library, error);
}

// Made at the first use; lives for ever.
CudaPlugin& Plugin() {
  static auto* const plugin =
      new CudaPlugin(OpenConfigured, GetKernelImage().data);
  return *plugin;
}

const char* LibraryVersion() noexcept { return Plugin().LibraryVersion(); }

sherd_code Probe(sherd_error_v0* error) {
  return Guard(error, [&] { return Plugin().Probe(error); });
}

sherd_code Count(int32_t* devices, sherd_error_v0* error) {
  return Guard(error, [&] { return Plugin().Count(devices, error); });
}

sherd_code Describe(int32_t device, sherd_device_info_v0* info,
                    sherd_error_v0* error) {
  return Guard(error, [&] { return Plugin().Describe(device, info, error); });
}

sherd_code GetCurrent(int32_t* device, sherd_error_v0* error) {
  return Guard(error, [&] { return Plugin().GetCurrent(device, error); });
}

sherd_code SetCurrent(int32_t device, sherd_error_v0* error) {
  return Guard(error, [&] { return Plugin().SetCurrent(device, error); });
}

sherd_code Allocate(int32_t device, uint64_t bytes, void* stream, void** data,
                    sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().Allocate(device, bytes, stream, data, error);
  });
}

sherd_code Deallocate(int32_t device, void* data, uint64_t bytes, void* stream,
                      sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().Deallocate(device, data, bytes, stream, error);
  });
}

sherd_code AllocatePinned(uint64_t bytes, void** data, sherd_error_v0* error) {
  return Guard(error,
               [&] { return Plugin().AllocatePinned(bytes, data, error); });
}

sherd_code DeallocatePinned(void* data, uint64_t bytes, sherd_error_v0* error) {
  return Guard(error, [&] { return Plugin().DeallocatePinned(data, bytes); });
}

sherd_code Statistics(int32_t device, sherd_device_memory_v0* memory,
                      sherd_error_v0* error) {
  return Guard(error,
               [&] { return Plugin().Statistics(device, memory, error); });
}

sherd_code Trim(sherd_error_v0* error) {
  return Guard(error, [&] { return Plugin().Trim(error); });
}

sherd_code Locate(const void* data, int32_t* device, sherd_error_v0* error) {
  return Guard(error, [&] { return Plugin().Locate(data, device, error); });
}

sherd_code CreateStream(int32_t device, int32_t high_priority, void** stream,
                        sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().CreateStream(device, high_priority != 0, stream, error);
  });
}

sherd_code DestroyStream(int32_t device, void* stream, sherd_error_v0* error) {
  return Guard(error,
               [&] { return Plugin().DestroyStream(device, stream, error); });
}

sherd_code IsCapturing(int32_t device, void* stream, int32_t* capturing,
                       sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().IsCapturing(device, stream, capturing, error);
  });
}

sherd_code TakeEvent(int32_t device, void** event, sherd_error_v0* error) {
  return Guard(error, [&] { return Plugin().TakeEvent(device, event, error); });
}

void ReturnEvent(int32_t device, void* event) noexcept {
  Plugin().ReturnEvent(device, event);
}

sherd_code RecordEvent(int32_t device, void* event, void* stream,
                       sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().RecordEvent(device, event, stream, error);
  });
}

sherd_code WaitEvent(int32_t device, void* stream, void* event,
                     sherd_error_v0* error) {
  return Guard(
      error, [&] { return Plugin().WaitEvent(device, stream, event, error); });
}

sherd_code QueryEvent(void* event, sherd_error_v0* error) {
  return Guard(error, [&] { return Plugin().QueryEvent(event, error); });
}

sherd_code CopyBytes(int32_t device, void* stream, void* dst, const void* src,
                     uint64_t bytes, sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().work().CopyBytes(device, stream, dst, src, bytes, error);
  });
}

sherd_code Copy(int32_t device, void* stream,
                const sherd_strided_copy_v0* copies, uint64_t num_copies,
                sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().work().Copy(device, stream, copies, num_copies, error);
  });
}

sherd_code Fill(int32_t device, void* stream, const sherd_fill_v0* fill,
                sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().work().Fill(device, stream, *fill, error);
  });
}

sherd_code Random(int32_t device, void* stream, const sherd_random_v0* random,
                  sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().work().Random(device, stream, *random, error);
  });
}

sherd_code Reduce(int32_t device, void* stream, int32_t dtype,
                  int32_t reduction, void* out, const void* const* ins,
                  int32_t num_ins, uint64_t count, int32_t divisor,
                  sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().work().Reduce(device, stream, dtype, reduction, out, ins,
                                  num_ins, count, divisor, error);
  });
}

sherd_code ExportMemory(int32_t device, const void* data, uint64_t bytes,
                        sherd_device_handle_v0* handle, sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().ExportMemory(device, data, bytes, handle, error);
  });
}

sherd_code ImportMemory(int32_t device, const sherd_device_handle_v0* handle,
                        void** data, sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().ImportMemory(device, *handle, data, error);
  });
}

void CloseMemory(int32_t device, void* data) noexcept {
  Plugin().CloseMemory(device, data);
}

sherd_code AllocateShared(int32_t device, uint64_t bytes, void** data,
                          sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().AllocateShared(device, bytes, data, error);
  });
}

sherd_code DeallocateShared(int32_t device, void* data, uint64_t bytes,
                            sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().DeallocateShared(device, data, bytes, error);
  });
}

sherd_code Reach(int32_t device, int32_t owner, int32_t* reachable,
                 sherd_error_v0* error) {
  return Guard(error,
               [&] { return Plugin().Reach(device, owner, reachable, error); });
}

constexpr sherd_device_v0 kTable = plugin::WithHeader(sherd_device_v0{
    .name = "cuda",
    .device_type = kCudaDeviceType,
    .library_version = LibraryVersion,
    .probe = Probe,
    .count = Count,
    .describe = Describe,
    .get_current = GetCurrent,
    .set_current = SetCurrent,
    .allocate = Allocate,
    .deallocate = Deallocate,
    .allocate_pinned = AllocatePinned,
    .deallocate_pinned = DeallocatePinned,
    .statistics = Statistics,
    .trim = Trim,
    .locate = Locate,
    .create_stream = CreateStream,
    .destroy_stream = DestroyStream,
    .is_capturing = IsCapturing,
    .take_event = TakeEvent,
    .return_event = ReturnEvent,
    .record_event = RecordEvent,
    .wait_event = WaitEvent,
    .query_event = QueryEvent,
    .copy_bytes = CopyBytes,
    .copy = Copy,
    .fill = Fill,
    .random = Random,
    .reduce = Reduce,
    .allocate_shared = AllocateShared,
    .deallocate_shared = DeallocateShared,
    .export_memory = ExportMemory,
    .import_memory = ImportMemory,
    .close_memory = CloseMemory,
    .reach = Reach,
    .push_range = PushNvtxRange,
    .pop_range = PopNvtxRange,
});

}  // namespace
}  // namespace sherd::internal

SHERD_DEVICE_PLUGIN(sherd::internal::kTable)
