// A device plugin without a device: it presents two pieces of host memory as
// devices, with streams that run at once.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sherd/backends/device_abi.h"
#include "sherd/backends/plugin.h"

namespace {

constexpr int32_t kDevices = 2;

int32_t current;

const char* Version() {
  static char text[64];
  char library[32];
  sherd::plugin::Host().setting("cuda_library", library, sizeof(library));
  std::snprintf(text, sizeof(text), "tiny driver from '%s'", library);
  return text;
}

sherd_code Probe(sherd_error_v0*) { return SHERD_OK; }

sherd_code Count(int32_t* devices, sherd_error_v0*) {
  *devices = kDevices;
  return SHERD_OK;
}

sherd_code Describe(int32_t device, sherd_device_info_v0* info,
                    sherd_error_v0* error) {
  if (device == 1) {
    return sherd::plugin::Fail(error, SHERD_SYSTEM, -1, "fell off the bus");
  }
  info->multiprocessors = 3;
  info->compute_major = 9;
  info->compute_minor = 1;
  info->total_bytes = 4096;
  info->free_bytes = 1024;
  // Without a NUL.
  std::memset(info->name, 'n', sizeof(info->name));
  std::strncpy(info->bus_id, "0000:01:00.0", sizeof(info->bus_id));
  return SHERD_OK;
}

sherd_code GetCurrent(int32_t* device, sherd_error_v0*) {
  *device = current;
  return SHERD_OK;
}

sherd_code SetCurrent(int32_t device, sherd_error_v0*) {
  current = device;
  return SHERD_OK;
}

sherd_code Allocate(int32_t, uint64_t bytes, void*, void** data,
                    sherd_error_v0*) {
  *data = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return SHERD_OK;
}

sherd_code Deallocate(int32_t, void* data, uint64_t, void*, sherd_error_v0*) {
  std::free(data);
  return SHERD_OK;
}

sherd_code AllocatePinned(uint64_t bytes, void** data, sherd_error_v0* error) {
  return Allocate(0, bytes, nullptr, data, error);
}

sherd_code DeallocatePinned(void* data, uint64_t, sherd_error_v0*) {
  std::free(data);
  return SHERD_OK;
}

sherd_code Locate(const void*, int32_t* device, sherd_error_v0*) {
  *device = -2;
  return SHERD_OK;
}

sherd_code CreateStream(int32_t, int32_t, void** stream, sherd_error_v0*) {
  *stream = &current;
  return SHERD_OK;
}

sherd_code DestroyStream(int32_t, void*, sherd_error_v0*) { return SHERD_OK; }

sherd_code IsCapturing(int32_t, void*, int32_t* capturing, sherd_error_v0*) {
  *capturing = 0;
  return SHERD_OK;
}

sherd_code TakeEvent(int32_t, void** event, sherd_error_v0*) {
  *event = &current;
  return SHERD_OK;
}

void ReturnEvent(int32_t, void*) {}

sherd_code RecordEvent(int32_t, void*, void*, sherd_error_v0*) {
  return SHERD_OK;
}

sherd_code WaitEvent(int32_t, void*, void*, sherd_error_v0*) {
  return SHERD_OK;
}

sherd_code QueryEvent(void*, sherd_error_v0*) { return SHERD_OK; }

sherd_code CopyBytes(int32_t, void*, void* dst, const void* src, uint64_t bytes,
                     sherd_error_v0*) {
  std::memcpy(dst, src, bytes);
  return SHERD_OK;
}

sherd_code Copy(int32_t, void*, const sherd_strided_copy_v0*, uint64_t,
                sherd_error_v0* error) {
  return sherd::plugin::Fail(error, SHERD_UNSUPPORTED, -1, "no kernels");
}

// Contiguous boxes of one dimension.
sherd_code Fill(int32_t, void*, const sherd_fill_v0* fill, sherd_error_v0*) {
  for (int64_t i = 0; i < fill->sizes[0]; ++i) {
    std::memcpy(static_cast<char*>(fill->data) + i * fill->element_size,
                fill->value, fill->element_size);
  }
  return SHERD_OK;
}

constexpr sherd_device_v0 kTable = sherd::plugin::WithHeader(sherd_device_v0{
    .name = "tiny_device",
    .device_type = 1,
    .library_version = Version,
    .probe = Probe,
    .count = Count,
    .describe = Describe,
    .get_current = GetCurrent,
    .set_current = SetCurrent,
    .allocate = Allocate,
    .deallocate = Deallocate,
    .allocate_pinned = AllocatePinned,
    .deallocate_pinned = DeallocatePinned,
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
});

}  // namespace

SHERD_DEVICE_PLUGIN(kTable)
