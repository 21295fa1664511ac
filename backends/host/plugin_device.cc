#include "sherd/backends/host/plugin_device.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "sherd/backends/host/plugin_call.h"
#include "sherd/backends/host/plugin_file.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

// Both sides of the ABI have the same values.
static_assert(static_cast<int>(DeviceType::kCuda) == 1);
static_assert(static_cast<int>(DeviceRandom::Distribution::kUniform) ==
              SHERD_UNIFORM);
static_assert(static_cast<int>(DeviceRandom::Distribution::kNormal) ==
              SHERD_NORMAL);
static_assert(static_cast<int>(DeviceRowPooling::Mode::kSum) == SHERD_POOL_SUM);
static_assert(static_cast<int>(DeviceRowPooling::Mode::kMean) ==
              SHERD_POOL_MEAN);
static_assert(static_cast<int>(DeviceRowPooling::Mode::kMax) == SHERD_POOL_MAX);
static_assert(static_cast<int>(DeviceRowPooling::Mode::kNone) ==
              SHERD_POOL_NONE);
static_assert(sizeof(DeviceMemoryHandle) == sizeof(sherd_device_handle_v0));

constexpr int kMostDevices = 4096;

// Converts the result of a plugin's function.
absl::Status Convert(sherd_code code, const sherd_error_v0& error) {
  if (code == SHERD_OK) return absl::OkStatus();
  absl::Status status = ToStatus(code, error, 0);
  // For a device this code means that the device no longer works.
  if (code == SHERD_SYSTEM) {
    return absl::FailedPreconditionError(status.message());
  }
  return status;
}

// Calls a function of the table, whose last argument receives the error.
template <typename Call>
absl::Status Run(Call call) {
  sherd_error_v0 error = NoError();
  return Convert(Guarded(&error, [&] { return call(&error); }), error);
}

// The same, of a function that has to return an address.
template <typename Call>
absl::StatusOr<void*> RunForAddress(absl::string_view what, Call call) {
  void* address = nullptr;
  SHERD_RETURN_IF_ERROR(
      Run([&](sherd_error_v0* error) { return call(&address, error); }));
  if (address != nullptr) return address;
  return absl::InternalError(
      absl::StrCat("the device plugin returned no ", what, " and no error"));
}

template <size_t kSize>
std::string Text(const char (&text)[kSize]) {
  return std::string(text, strnlen(text, kSize));
}

bool IsEmpty(absl::Span<const int64_t> sizes) {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

}  // namespace

bool IsComplete(const sherd_device_v0& table) {
  return table.struct_size == sizeof(sherd_device_v0) &&
         table.name != nullptr && IsPluginName(table.name) &&
         table.device_type == static_cast<int32_t>(DeviceType::kCuda) &&
         table.probe != nullptr && table.count != nullptr &&
         table.describe != nullptr && table.get_current != nullptr &&
         table.set_current != nullptr && table.allocate != nullptr &&
         table.deallocate != nullptr && table.allocate_pinned != nullptr &&
         table.deallocate_pinned != nullptr && table.locate != nullptr &&
         table.create_stream != nullptr && table.destroy_stream != nullptr &&
         table.is_capturing != nullptr && table.take_event != nullptr &&
         table.return_event != nullptr && table.record_event != nullptr &&
         table.wait_event != nullptr && table.query_event != nullptr &&
         table.copy_bytes != nullptr && table.copy != nullptr &&
         table.fill != nullptr &&
         (table.allocate_shared == nullptr) ==
             (table.deallocate_shared == nullptr) &&
         (table.export_memory == nullptr) == (table.import_memory == nullptr) &&
         (table.export_memory == nullptr) == (table.close_memory == nullptr) &&
         (table.push_range == nullptr) == (table.pop_range == nullptr);
}

absl::Status PluginDevice::CheckIndex(int device) {
  int count = count_.load(std::memory_order_relaxed);
  if (count < 0) {
    SHERD_ASSIGN_OR_RETURN(count, DeviceCount());
  }
  if (device >= 0 && device < count) return absl::OkStatus();
  // The error lists the devices that exist.
  return MemoryOf(device).status();
}

absl::Status PluginDevice::Lacks(absl::string_view what) const {
  return absl::UnimplementedError(
      absl::StrCat("the device plugin ", table_.name, " has no ", what));
}

std::string PluginDevice::library_version() const {
  const char* version = nullptr;
  if (table_.library_version != nullptr) {
    GuardedQuietly([&] { version = table_.library_version(); });
  }
  return version == nullptr ? "" : version;
}

absl::Status PluginDevice::Probe() {
  const absl::Status status =
      Run([this](sherd_error_v0* error) { return table_.probe(error); });
  if (status.ok()) return status;
  return absl::UnavailableError(absl::StrCat(
      "no ", Name(type()), " device can be used: ", status.message()));
}

absl::StatusOr<int> PluginDevice::DeviceCount() {
  int count = count_.load(std::memory_order_relaxed);
  if (count >= 0) return count;
  int32_t devices = 0;
  SHERD_RETURN_IF_ERROR(Run(
      [&](sherd_error_v0* error) { return table_.count(&devices, error); }));
  if (devices < 0 || devices > kMostDevices) {
    return absl::InternalError(absl::StrCat("the device plugin ", table_.name,
                                            " counts ", devices, " devices"));
  }
  count_.store(devices, std::memory_order_relaxed);
  return devices;
}

absl::StatusOr<DeviceProperties> PluginDevice::Properties(int device) {
  SHERD_RETURN_IF_ERROR(CheckIndex(device));
  sherd_device_info_v0 info = {};
  info.struct_size = sizeof(info);
  SHERD_RETURN_IF_ERROR(Run([&](sherd_error_v0* error) {
    return table_.describe(device, &info, error);
  }));
  return DeviceProperties{.name = Text(info.name),
                          .bus_id = Text(info.bus_id),
                          .total_bytes = info.total_bytes,
                          .free_bytes = info.free_bytes,
                          .compute_major = info.compute_major,
                          .compute_minor = info.compute_minor,
                          .multiprocessors = info.multiprocessors};
}

absl::StatusOr<int> PluginDevice::CurrentDevice() {
  int32_t device = 0;
  SHERD_RETURN_IF_ERROR(Run([&](sherd_error_v0* error) {
    return table_.get_current(&device, error);
  }));
  return device;
}

absl::Status PluginDevice::SetCurrentDevice(int device) {
  SHERD_RETURN_IF_ERROR(CheckIndex(device));
  return Run(
      [&](sherd_error_v0* error) { return table_.set_current(device, error); });
}

absl::StatusOr<DeviceMemoryStatistics> PluginDevice::MemoryStatistics(
    int device) {
  if (table_.statistics == nullptr) return Lacks("statistics of memory");
  SHERD_RETURN_IF_ERROR(CheckIndex(device));
  sherd_device_memory_v0 memory = {};
  memory.struct_size = sizeof(memory);
  SHERD_RETURN_IF_ERROR(Run([&](sherd_error_v0* error) {
    return table_.statistics(device, &memory, error);
  }));
  return DeviceMemoryStatistics{memory.live_bytes, memory.cached_bytes};
}

absl::Status PluginDevice::Trim() {
  if (table_.trim == nullptr) return absl::OkStatus();
  return Run([this](sherd_error_v0* error) { return table_.trim(error); });
}

absl::StatusOr<std::optional<Device>> PluginDevice::Locate(const void* data) {
  int32_t device = -2;
  SHERD_RETURN_IF_ERROR(Run([&](sherd_error_v0* error) {
    return table_.locate(data, &device, error);
  }));
  if (device >= 0) return Device{type(), device};
  if (device == -1) return Device();
  return std::nullopt;
}

absl::StatusOr<DeviceStream> PluginDevice::CreateStream(int device,
                                                        bool high_priority) {
  SHERD_RETURN_IF_ERROR(CheckIndex(device));
  DeviceStream stream = {{type(), device}, nullptr};
  SHERD_ASSIGN_OR_RETURN(
      stream.handle,
      RunForAddress("stream", [&](void** handle, sherd_error_v0* error) {
        return table_.create_stream(device, high_priority ? 1 : 0, handle,
                                    error);
      }));
  return stream;
}

void PluginDevice::EndStream(const DeviceStream& stream) {
  const absl::Status status = Run([&](sherd_error_v0* error) {
    return table_.destroy_stream(stream.device.index, stream.handle, error);
  });
  if (!status.ok()) {
    SHERD_LOG(kWarning) << "a stream of " << stream.device.ToString()
                        << " is not destroyed: " << status.ToString();
  }
}

absl::StatusOr<bool> PluginDevice::IsCapturing(const DeviceStream& stream) {
  SHERD_RETURN_IF_ERROR(CheckIndex(stream.device.index));
  int32_t capturing = 0;
  SHERD_RETURN_IF_ERROR(Run([&](sherd_error_v0* error) {
    return table_.is_capturing(stream.device.index, stream.handle, &capturing,
                               error);
  }));
  return capturing != 0;
}

absl::StatusOr<DeviceEvent> PluginDevice::TakeEvent(int device) {
  SHERD_RETURN_IF_ERROR(CheckIndex(device));
  return RunForAddress("event", [&](void** event, sherd_error_v0* error) {
    return table_.take_event(device, event, error);
  });
}

void PluginDevice::ReturnEvent(int device, DeviceEvent event) {
  GuardedQuietly([&] { table_.return_event(device, event); });
}

absl::Status PluginDevice::RecordEvent(DeviceEvent event,
                                       const DeviceStream& stream) {
  SHERD_RETURN_IF_ERROR(CheckIndex(stream.device.index));
  return Run([&](sherd_error_v0* error) {
    return table_.record_event(stream.device.index, event, stream.handle,
                               error);
  });
}

absl::Status PluginDevice::WaitEvent(const DeviceStream& stream,
                                     DeviceEvent event) {
  SHERD_RETURN_IF_ERROR(CheckIndex(stream.device.index));
  return Run([&](sherd_error_v0* error) {
    return table_.wait_event(stream.device.index, stream.handle, event, error);
  });
}

absl::StatusOr<bool> PluginDevice::QueryEvent(DeviceEvent event) {
  sherd_error_v0 error = NoError();
  const sherd_code code =
      Guarded(&error, [&] { return table_.query_event(event, &error); });
  if (code == SHERD_IN_PROGRESS) return false;
  SHERD_RETURN_IF_ERROR(Convert(code, error));
  return true;
}

absl::Status PluginDevice::CopyBytes(const DeviceStream& stream, void* dst,
                                     const void* src, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(CheckIndex(stream.device.index));
  return Run([&](sherd_error_v0* error) {
    return table_.copy_bytes(stream.device.index, stream.handle, dst, src,
                             bytes, error);
  });
}

absl::Status PluginDevice::Copy(const DeviceStream& stream,
                                absl::Span<const DeviceCopy> copies) {
  SHERD_RETURN_IF_ERROR(CheckIndex(stream.device.index));
  absl::InlinedVector<sherd_strided_copy_v0, 8> boxes;
  boxes.reserve(copies.size());
  for (const DeviceCopy& copy : copies) {
    if (IsEmpty(copy.sizes)) continue;
    boxes.push_back({.dst = copy.dst,
                     .src = copy.src,
                     .sizes = copy.sizes.data(),
                     .dst_strides = copy.dst_strides.data(),
                     .src_strides = copy.src_strides.data(),
                     .rank = static_cast<int32_t>(copy.sizes.size()),
                     .element_size = static_cast<uint32_t>(copy.element_size)});
  }
  if (boxes.empty()) return absl::OkStatus();
  return Run([&](sherd_error_v0* error) {
    return table_.copy(stream.device.index, stream.handle, boxes.data(),
                       boxes.size(), error);
  });
}

absl::Status PluginDevice::Fill(const DeviceStream& stream,
                                const DeviceFill& fill) {
  if (IsEmpty(fill.sizes)) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(CheckIndex(stream.device.index));
  sherd_fill_v0 request = {
      .struct_size = sizeof(request),
      .rank = static_cast<int32_t>(fill.sizes.size()),
      .data = fill.data,
      .sizes = fill.sizes.data(),
      .strides = fill.strides.data(),
      .element_size = static_cast<uint32_t>(fill.element_size),
      .value = {}};
  if (fill.element_size > sizeof(request.value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements to fill have at most ", sizeof(request.value),
                     " bytes, got ", fill.element_size));
  }
  std::memcpy(request.value, fill.value, fill.element_size);
  return Run([&](sherd_error_v0* error) {
    return table_.fill(stream.device.index, stream.handle, &request, error);
  });
}

absl::Status PluginDevice::FillRandom(const DeviceStream& stream,
                                      const DeviceRandom& random) {
  if (table_.random == nullptr) return Lacks("random numbers");
  if (IsEmpty(random.sizes)) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(CheckIndex(stream.device.index));
  const sherd_random_v0 request = {
      .struct_size = sizeof(request),
      .distribution = static_cast<int32_t>(random.distribution),
      .dtype = static_cast<int32_t>(random.dtype),
      .rank = static_cast<int32_t>(random.sizes.size()),
      .a = random.a,
      .b = random.b,
      .seed = random.seed,
      .position = random.position,
      .data = random.data,
      .sizes = random.sizes.data(),
      .strides = random.strides.data(),
      .global_sizes = random.global_sizes.data(),
      .offsets = random.offsets.data()};
  return Run([&](sherd_error_v0* error) {
    return table_.random(stream.device.index, stream.handle, &request, error);
  });
}

absl::Status PluginDevice::Reduce(const DeviceStream& stream, DType dtype,
                                  int reduction, void* out,
                                  absl::Span<const void* const> ins,
                                  uint64_t count, int divisor) {
  if (table_.reduce == nullptr) return Lacks("reductions");
  if (count == 0) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(CheckIndex(stream.device.index));
  return Run([&](sherd_error_v0* error) {
    return table_.reduce(stream.device.index, stream.handle,
                         static_cast<int32_t>(dtype), reduction, out,
                         ins.data(), static_cast<int32_t>(ins.size()), count,
                         divisor, error);
  });
}

absl::Status PluginDevice::PoolRows(const DeviceStream& stream,
                                    const DeviceRowPooling& pooling) {
  if (table_.pool_rows == nullptr) return Lacks("pooling of rows");
  if (pooling.bags == 0 || pooling.columns == 0) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(CheckIndex(stream.device.index));
  const sherd_pool_rows_v0 request = {
      .struct_size = sizeof(request),
      .mode = static_cast<int32_t>(pooling.mode),
      .table_dtype = static_cast<int32_t>(pooling.table_dtype),
      .out_dtype = static_cast<int32_t>(pooling.out_dtype),
      .out = pooling.out,
      .out_stride = pooling.out_stride,
      .table = pooling.table,
      .row_stride = pooling.row_stride,
      .row_alignment = pooling.row_alignment,
      .columns = pooling.columns,
      .bags = pooling.bags,
      .ends = pooling.ends,
      .rows = pooling.rows,
      .weights = pooling.weights,
      .divisors = pooling.divisors};
  return Run([&](sherd_error_v0* error) {
    return table_.pool_rows(stream.device.index, stream.handle, &request,
                            error);
  });
}

absl::StatusOr<DeviceMemoryHandle> PluginDevice::Export(int device,
                                                        const void* data,
                                                        size_t bytes) {
  if (table_.export_memory == nullptr) return Lacks("memory for others");
  SHERD_RETURN_IF_ERROR(CheckIndex(device));
  sherd_device_handle_v0 handle = {};
  SHERD_RETURN_IF_ERROR(Run([&](sherd_error_v0* error) {
    return table_.export_memory(device, data, bytes, &handle, error);
  }));
  return std::bit_cast<DeviceMemoryHandle>(handle);
}

absl::StatusOr<void*> PluginDevice::Import(int device,
                                           const DeviceMemoryHandle& handle) {
  if (table_.import_memory == nullptr) return Lacks("memory of others");
  SHERD_RETURN_IF_ERROR(CheckIndex(device));
  const auto given = std::bit_cast<sherd_device_handle_v0>(handle);
  return RunForAddress(
      "imported memory", [&](void** data, sherd_error_v0* error) {
        return table_.import_memory(device, &given, data, error);
      });
}

void PluginDevice::Close(int device, void* data) {
  if (table_.close_memory == nullptr) return;
  GuardedQuietly([&] { table_.close_memory(device, data); });
}

absl::StatusOr<bool> PluginDevice::Reach(int device, int owner) {
  SHERD_RETURN_IF_ERROR(CheckIndex(device));
  SHERD_RETURN_IF_ERROR(CheckIndex(owner));
  if (device == owner) return true;
  if (table_.reach == nullptr) return false;
  int32_t reachable = 0;
  SHERD_RETURN_IF_ERROR(Run([&](sherd_error_v0* error) {
    return table_.reach(device, owner, &reachable, error);
  }));
  return reachable != 0;
}

void PluginDevice::PushRange(const char* name) {
  if (table_.push_range == nullptr) return;
  GuardedQuietly([&] { table_.push_range(name); });
}

void PluginDevice::PopRange() {
  if (table_.pop_range == nullptr) return;
  GuardedQuietly([this] { table_.pop_range(); });
}

absl::StatusOr<void*> PluginDevice::AllocateOn(const DeviceStream& stream,
                                               size_t bytes) {
  return RunForAddress("memory", [&](void** data, sherd_error_v0* error) {
    return table_.allocate(stream.device.index, bytes, stream.handle, data,
                           error);
  });
}

absl::Status PluginDevice::DeallocateOn(const DeviceStream& stream, void* data,
                                        size_t bytes) {
  return Run([&](sherd_error_v0* error) {
    return table_.deallocate(stream.device.index, data, bytes, stream.handle,
                             error);
  });
}

absl::StatusOr<void*> PluginDevice::AllocatePinned(size_t bytes) {
  return RunForAddress("pinned memory",
                       [&](void** data, sherd_error_v0* error) {
                         return table_.allocate_pinned(bytes, data, error);
                       });
}

absl::Status PluginDevice::DeallocatePinned(void* data, size_t bytes) {
  return Run([&](sherd_error_v0* error) {
    return table_.deallocate_pinned(data, bytes, error);
  });
}

absl::StatusOr<void*> PluginDevice::AllocateShared(int device, size_t bytes) {
  if (table_.allocate_shared == nullptr) return Lacks("memory for others");
  return RunForAddress("memory", [&](void** data, sherd_error_v0* error) {
    return table_.allocate_shared(device, bytes, data, error);
  });
}

absl::Status PluginDevice::DeallocateShared(int device, void* data,
                                            size_t bytes) {
  return Run([&](sherd_error_v0* error) {
    return table_.deallocate_shared(device, data, bytes, error);
  });
}

}  // namespace sherd::internal
