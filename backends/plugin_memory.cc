#include "sherd/backends/plugin_memory.h"

#include <bit>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "sherd/backends/plugin_call.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {

static_assert(sizeof(MemoryHandle) == sizeof(sherd_memory_handle_v0));

bool IsComplete(const sherd_memory_v0& memory) {
  return memory.struct_size >= sizeof(sherd_memory_v0) &&
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
    return BlamedRank(status) ? status : WithRank(std::move(status), peer);
  }
  if (range.data == nullptr) {
    return absl::InternalError("the plugin imported nothing and says OK");
  }
  return absl::Span<std::byte>(static_cast<std::byte*>(range.data), range.size);
}

}  // namespace sherd::internal
