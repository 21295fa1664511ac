#ifndef SHERD_BACKENDS_HOST_PLUGIN_MEMORY_H_
#define SHERD_BACKENDS_HOST_PLUGIN_MEMORY_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::internal {

// A plugin's memory table as the allocators and PeerMemory of core/comm.

// Returns whether the table has every function that is not optional.
bool IsComplete(const sherd_memory_v0& memory);

class PluginAllocator final : public Allocator {
 public:
  // The allocator of a table that has one: the same for each call, and never
  // destroyed. `name` is that of the backend.
  static PluginAllocator& Of(const sherd_memory_v0& memory,
                             absl::string_view name);

  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override;
  void Deallocate(void* data, size_t bytes) override;
  absl::string_view name() const override { return name_; }

 private:
  PluginAllocator(const sherd_memory_v0& memory, absl::string_view name)
      : memory_(memory), name_(name) {}

  const sherd_memory_v0& memory_;
  const std::string name_;
};

// Returns whether the table has a type of device, and every function that is
// not optional.
bool IsComplete(const sherd_on_device_v0& on_device);

// Device memory that a plugin allocates for its operations.
class DevicePluginAllocator final : public Allocator {
 public:
  // As PluginAllocator::Of, one for each device.
  static DevicePluginAllocator& Of(const sherd_on_device_v0& on_device,
                                   absl::string_view name, int device);

  // Falls back to the device's own memory if the vendor's library has none.
  absl::StatusOr<void*> Allocate(size_t bytes, size_t alignment) override;
  void Deallocate(void* data, size_t bytes) override;
  absl::string_view name() const override { return name_; }
  Device device() const override { return device_; }

 private:
  DevicePluginAllocator(const sherd_on_device_v0& on_device,
                        absl::string_view name, int device);

  const sherd_on_device_v0& on_device_;
  const std::string name_;
  const Device device_;
  absl::Mutex mutex_;
  // The blocks that are the device's own memory.
  absl::flat_hash_set<void*> own_ ABSL_GUARDED_BY(mutex_);
};

class PluginPeerMemory final : public PeerMemory {
 public:
  // Null if the plugin does not support it here.
  static std::shared_ptr<PeerMemory> Open(const sherd_memory_v0& memory,
                                          sherd_comm_v0* comm, int size);

  // The memory of processes, without a group; errors as Backend has them.
  static absl::StatusOr<std::shared_ptr<PeerMemory>> OpenProcesses(
      const sherd_memory_v0& memory,
      absl::Span<const ProcessIdentity> processes);

  ~PluginPeerMemory() override;
  PluginPeerMemory(const PluginPeerMemory&) = delete;
  PluginPeerMemory& operator=(const PluginPeerMemory&) = delete;

  std::optional<MemoryHandle> Export(const void* data, size_t bytes) override;
  absl::StatusOr<absl::Span<std::byte>> Import(
      int peer, const MemoryHandle& handle) override;

 private:
  PluginPeerMemory(const sherd_memory_v0& memory, sherd_peers_v0* peers,
                   int size)
      : memory_(memory), peers_(peers), size_(size) {}

  const sherd_memory_v0& memory_;
  sherd_peers_v0* const peers_;
  const int size_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_HOST_PLUGIN_MEMORY_H_
