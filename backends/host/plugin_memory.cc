#include "sherd/backends/host/plugin_memory.h"

#include <bit>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "sherd/backends/host/plugin_call.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/scoped_device.h"
#include "sherd/core/tensor/device_runtime.h"

namespace sherd::internal {

static_assert(sizeof(MemoryHandle) == sizeof(sherd_memory_handle_v0));

bool IsComplete(const sherd_memory_v0& memory) {
  return memory.struct_size == sizeof(sherd_memory_v0) &&
         (memory.allocate == nullptr) == (memory.deallocate == nullptr) &&
         memory.open_peers != nullptr && memory.close_peers != nullptr &&
         memory.export_memory != nullptr && memory.import_memory != nullptr;
}

PluginAllocator& PluginAllocator::Of(const sherd_memory_v0& memory,
                                     absl::string_view name) {
  struct Known {
    absl::Mutex mutex;
    absl::flat_hash_map<const sherd_memory_v0*, PluginAllocator*> allocators
        ABSL_GUARDED_BY(mutex);
  };
  static Known& known = *new Known;
  absl::MutexLock lock(&known.mutex);
  PluginAllocator*& allocator = known.allocators[&memory];
  if (allocator == nullptr) allocator = new PluginAllocator(memory, name);
  return *allocator;
}

absl::StatusOr<void*> PluginAllocator::Allocate(size_t bytes,
                                                size_t alignment) {
  void* data = nullptr;
  sherd_error_v0 error = NoError();
  const sherd_code code = Guarded(&error, [&] {
    return memory_.allocate(bytes, alignment, &data, &error);
  });
  SHERD_RETURN_IF_ERROR(
      Annotate(ToStatus(code, error, 0), absl::StrCat(name_, " memory")));
  if (data != nullptr) return data;
  return absl::InternalError(absl::StrCat("the plugin of backend ", name_,
                                          " returned no memory and no error"));
}

void PluginAllocator::Deallocate(void* data, size_t bytes) {
  GuardedQuietly([&] { memory_.deallocate(data, bytes); });
}

bool IsComplete(const sherd_on_device_v0& on_device) {
  return on_device.struct_size == sizeof(sherd_on_device_v0) &&
         on_device.device_type == static_cast<int32_t>(DeviceType::kCuda) &&
         on_device.poll != nullptr && on_device.begin_batch != nullptr &&
         on_device.end_batch != nullptr && on_device.finalize != nullptr &&
         (on_device.allocate == nullptr) == (on_device.deallocate == nullptr) &&
         (on_device.register_memory == nullptr) ==
             (on_device.deregister_memory == nullptr);
}

DevicePluginAllocator& DevicePluginAllocator::Of(
    const sherd_on_device_v0& on_device, absl::string_view name, int device) {
  struct Known {
    absl::Mutex mutex;
    absl::flat_hash_map<std::pair<const sherd_on_device_v0*, int>,
                        DevicePluginAllocator*>
        allocators ABSL_GUARDED_BY(mutex);
  };
  static Known& known = *new Known;
  absl::MutexLock lock(&known.mutex);
  DevicePluginAllocator*& allocator = known.allocators[{&on_device, device}];
  if (allocator == nullptr) {
    allocator = new DevicePluginAllocator(on_device, name, device);
  }
  return *allocator;
}

DevicePluginAllocator::DevicePluginAllocator(
    const sherd_on_device_v0& on_device, absl::string_view name, int device)
    : on_device_(on_device),
      name_(name),
      device_{static_cast<DeviceType>(on_device.device_type), device} {}

absl::StatusOr<void*> DevicePluginAllocator::Allocate(size_t bytes,
                                                      size_t alignment) {
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(device_.type));
  void* data = nullptr;
  sherd_error_v0 error = NoError();
  sherd_code code;
  {
    const ScopedDevice current(*runtime, device_);
    SHERD_RETURN_IF_ERROR(current.status());
    code = Guarded(&error, [&] {
      return on_device_.allocate(device_.index, bytes, &data, &error);
    });
  }
  if (code == SHERD_UNSUPPORTED) {
    SHERD_ASSIGN_OR_RETURN(Allocator* const own,
                           runtime->MemoryOf(device_.index));
    SHERD_ASSIGN_OR_RETURN(data, own->Allocate(bytes, alignment));
    absl::MutexLock lock(&mutex_);
    own_.insert(data);
    return data;
  }
  SHERD_RETURN_IF_ERROR(
      Annotate(ToStatus(code, error, 0), absl::StrCat(name_, " memory")));
  if (data != nullptr) return data;
  return absl::InternalError(absl::StrCat("the plugin of backend ", name_,
                                          " returned no memory and no error"));
}

void DevicePluginAllocator::Deallocate(void* data, size_t bytes) {
  const absl::StatusOr<DeviceRuntime*> runtime =
      DeviceRuntime::For(device_.type);
  if (!runtime.ok()) return;
  {
    absl::MutexLock lock(&mutex_);
    if (own_.erase(data) > 0) {
      if (const auto own = (*runtime)->MemoryOf(device_.index); own.ok()) {
        (*own)->Deallocate(data, bytes);
      }
      return;
    }
  }
  const ScopedDevice current(**runtime, device_);
  GuardedQuietly([&] { on_device_.deallocate(device_.index, data, bytes); });
}

std::shared_ptr<PeerMemory> PluginPeerMemory::Open(
    const sherd_memory_v0& memory, sherd_comm_v0* comm, int size) {
  sherd_peers_v0* peers = nullptr;
  sherd_error_v0 error = NoError();
  const sherd_code code =
      Guarded(&error, [&] { return memory.open_peers(comm, &peers, &error); });
  if (code != SHERD_OK || peers == nullptr) {
    // The group works without it.
    SHERD_LOG(kDebug) << "no memory of peers: "
                      << ToStatus(code, error, size).ToString();
    return nullptr;
  }
  return std::shared_ptr<PeerMemory>(new PluginPeerMemory(memory, peers, size));
}

absl::StatusOr<std::shared_ptr<PeerMemory>> PluginPeerMemory::OpenProcesses(
    const sherd_memory_v0& memory,
    absl::Span<const ProcessIdentity> processes) {
  if (memory.open_processes == nullptr) {
    return absl::UnimplementedError(
        "the plugin reaches the memory of processes within a group only");
  }
  std::vector<sherd_process_v0> given;
  for (const ProcessIdentity& process : processes) {
    given.push_back({process.pid, process.start_time});
  }
  const int size = static_cast<int>(given.size());
  sherd_peers_v0* peers = nullptr;
  sherd_error_v0 error = NoError();
  SHERD_RETURN_IF_ERROR(ToStatus(Guarded(&error,
                                         [&] {
                                           return memory.open_processes(
                                               given.data(), size, &peers,
                                               &error);
                                         }),
                                 error, size));
  if (peers == nullptr) {
    return absl::InternalError("the plugin opened nothing and returned OK");
  }
  return std::shared_ptr<PeerMemory>(new PluginPeerMemory(memory, peers, size));
}

PluginPeerMemory::~PluginPeerMemory() {
  GuardedQuietly([this] { memory_.close_peers(peers_); });
}

std::optional<MemoryHandle> PluginPeerMemory::Export(const void* data,
                                                     size_t bytes) {
  if (bytes == 0) return std::nullopt;
  sherd_memory_handle_v0 handle = {};
  sherd_error_v0 error = NoError();
  const sherd_code code = Guarded(&error, [&] {
    return memory_.export_memory(peers_, data, bytes, &handle, &error);
  });
  if (code != SHERD_OK) return std::nullopt;
  return std::bit_cast<MemoryHandle>(handle);
}

absl::StatusOr<absl::Span<std::byte>> PluginPeerMemory::Import(
    int peer, const MemoryHandle& handle) {
  if (peer < 0 || peer >= size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", peer, " is out of range, expected 0 to ",
                     size_ - 1, ", ranks of the group"));
  }
  const auto given = std::bit_cast<sherd_memory_handle_v0>(handle);
  sherd_bytes_v0 range = {};
  sherd_error_v0 error = NoError();
  const sherd_code code = Guarded(&error, [&] {
    return memory_.import_memory(peers_, peer, &given, &range, &error);
  });
  absl::Status status = ToStatus(code, error, size_);
  if (!status.ok()) {
    return ErrorRank(status) ? status : WithRank(std::move(status), peer);
  }
  if (range.data == nullptr) {
    return absl::InternalError("the plugin imported nothing and returned OK");
  }
  return absl::Span<std::byte>(static_cast<std::byte*>(range.data), range.size);
}

}  // namespace sherd::internal
