// The device plugin: its table.

#include <cstdint>
#include <tuple>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/cuda_driver.h"
#include "sherd/backends/cuda/cuda_plugin.h"
#include "sherd/backends/cuda/cuda_work.h"
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

// Created at the first use; lives forever.
CudaPlugin& Plugin() {
  static auto* const plugin =
      new CudaPlugin(OpenConfigured, GetKernelImage().data);
  return *plugin;
}

CudaWork& Work() { return Plugin().work(); }

// The function of the table that calls a member of kObject(), guarded. Its last
// argument is where errors go.
template <auto kObject, auto kMember>
struct MemberFunction;

template <auto kObject, typename Object, typename... Args,
          sherd_code (Object::*kMember)(Args...)>
struct MemberFunction<kObject, kMember> {
  static sherd_code Call(Args... args) {
    sherd_error_v0* const error =
        std::get<sizeof...(Args) - 1>(std::tie(args...));
    return Guard(error, [&] { return (kObject().*kMember)(args...); });
  }
};

template <auto kMember>
constexpr auto* kOfPlugin = MemberFunction<Plugin, kMember>::Call;

template <auto kMember>
constexpr auto* kOfWork = MemberFunction<Work, kMember>::Call;

// Functions whose signatures differ between table and members.

const char* LibraryVersion() noexcept {
  const char* version = nullptr;
  plugin::GuardQuietly([&] { version = Plugin().LibraryVersion(); });
  return version;
}

sherd_code DeallocatePinned(void* data, uint64_t bytes, sherd_error_v0* error) {
  return Guard(error, [&] { return Plugin().DeallocatePinned(data, bytes); });
}

sherd_code CreateStream(int32_t device, int32_t high_priority, void** stream,
                        sherd_error_v0* error) {
  return Guard(error, [&] {
    return Plugin().CreateStream(device, high_priority != 0, stream, error);
  });
}

void ReturnEvent(int32_t device, void* event) noexcept {
  Plugin().ReturnEvent(device, event);
}

sherd_code Fill(int32_t device, void* stream, const sherd_fill_v0* fill,
                sherd_error_v0* error) {
  return Guard(error,
               [&] { return Work().Fill(device, stream, *fill, error); });
}

sherd_code Random(int32_t device, void* stream, const sherd_random_v0* random,
                  sherd_error_v0* error) {
  return Guard(error,
               [&] { return Work().Random(device, stream, *random, error); });
}

sherd_code PoolRows(int32_t device, void* stream,
                    const sherd_pool_rows_v0* pool, sherd_error_v0* error) {
  return Guard(error,
               [&] { return Work().PoolRows(device, stream, *pool, error); });
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

constexpr sherd_device_v0 kTable = plugin::WithHeader(sherd_device_v0{
    .name = "cuda",
    .device_type = kCudaDeviceType,
    .library_version = LibraryVersion,
    .probe = kOfPlugin<&CudaPlugin::Probe>,
    .count = kOfPlugin<&CudaPlugin::Count>,
    .describe = kOfPlugin<&CudaPlugin::Describe>,
    .get_current = kOfPlugin<&CudaPlugin::GetCurrent>,
    .set_current = kOfPlugin<&CudaPlugin::SetCurrent>,
    .allocate = kOfPlugin<&CudaPlugin::Allocate>,
    .deallocate = kOfPlugin<&CudaPlugin::Deallocate>,
    .allocate_pinned = kOfPlugin<&CudaPlugin::AllocatePinned>,
    .deallocate_pinned = DeallocatePinned,
    .statistics = kOfPlugin<&CudaPlugin::Statistics>,
    .trim = kOfPlugin<&CudaPlugin::Trim>,
    .locate = kOfPlugin<&CudaPlugin::Locate>,
    .create_stream = CreateStream,
    .destroy_stream = kOfPlugin<&CudaPlugin::DestroyStream>,
    .is_capturing = kOfPlugin<&CudaPlugin::IsCapturing>,
    .take_event = kOfPlugin<&CudaPlugin::TakeEvent>,
    .return_event = ReturnEvent,
    .record_event = kOfPlugin<&CudaPlugin::RecordEvent>,
    .wait_event = kOfPlugin<&CudaPlugin::WaitEvent>,
    .query_event = kOfPlugin<&CudaPlugin::QueryEvent>,
    .copy_bytes = kOfWork<&CudaWork::CopyBytes>,
    .copy = kOfWork<&CudaWork::Copy>,
    .fill = Fill,
    .random = Random,
    .reduce = kOfWork<&CudaWork::Reduce>,
    .pool_rows = PoolRows,
    .allocate_shared = kOfPlugin<&CudaPlugin::AllocateShared>,
    .deallocate_shared = kOfPlugin<&CudaPlugin::DeallocateShared>,
    .export_memory = kOfPlugin<&CudaPlugin::ExportMemory>,
    .import_memory = ImportMemory,
    .close_memory = CloseMemory,
    .reach = kOfPlugin<&CudaPlugin::Reach>,
    .push_range = PushNvtxRange,
    .pop_range = PopNvtxRange,
});

}  // namespace
}  // namespace sherd::internal

SHERD_DEVICE_PLUGIN(sherd::internal::kTable)
